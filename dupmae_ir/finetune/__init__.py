"""Fine-tuning: contrastive, with mined negatives, by distillation. :func:`train` is the function for programs."""

from __future__ import annotations

from dupmae_ir.finetune.api import train
from dupmae_ir.training.trained import Trained

__all__ = ["Trained", "train"]
