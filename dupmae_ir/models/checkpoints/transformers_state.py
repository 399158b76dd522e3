"""Guards the state that transformers keeps: process-wide while it loads a model, and in a tokenizer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOADING = threading.RLock()
"""Held while a model is loaded."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Load models inside this context: one thread at a time, without transformers' warnings and progress bars.

    ``from_pretrained`` replaces functions of ``torch.nn.init`` and creates modules on the meta device; two threads
    that load at once leave each other with weights on the meta device ("Cannot copy out of meta tensor"). The
    verbosity and the progress bars are process-wide settings too. What transformers would warn about, missing and
    unexpected weights, is checked by the callers.
    """
    with LOADING:
        import transformers

        bars = transformers.utils.logging.is_progress_bar_enabled()
        level = transformers.utils.logging.get_verbosity()
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity(logging.ERROR)
        try:
            yield
        finally:
            transformers.utils.logging.set_verbosity(level)
            if bars:
                transformers.utils.logging.enable_progress_bar()


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the files of ``tokenizer``, without the truncation and padding of its last call.

    A fast tokenizer keeps both and would write them to ``tokenizer.json``: the file would depend on what was
    tokenized last, and so on whether a training run was resumed.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)


def recompute_activations(model: PreTrainedModel) -> None:
    """Turn on activation checkpointing: the layers keep their inputs only and are computed again for the gradient."""
    # Transformers 5 renamed gradient_checkpointing_enable.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
