"""Pre-training: masked auto-encoding of a corpus, with one objective per method. :func:`train` is for programs."""

from __future__ import annotations

from dupmae_ir.pretrain.api import train
from dupmae_ir.training.trained import Trained

__all__ = ["Trained", "train"]
