"""dupmae_ir: pre-train, fine-tune, encode, search and evaluate masked-auto-encoder retrievers.

The public names are imported on first use, so ``import dupmae_ir`` costs nothing and never starts a JVM.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
