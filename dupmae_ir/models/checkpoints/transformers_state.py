"""Guards the process-wide state that transformers changes while it loads a model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_loading = threading.RLock()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Load models inside this context: one thread at a time, without transformers' warnings and progress bars.

    ``from_pretrained`` replaces functions of ``torch.nn.init`` and creates modules on the meta device; two threads
    that load at once leave each other with weights on the meta device ("Cannot copy out of meta tensor"). The
    verbosity and the progress bars are process-wide settings too. What transformers would warn about, missing and
    unexpected weights, is checked by the callers.
    """
    with _loading:
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
