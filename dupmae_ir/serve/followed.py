"""The process of a :class:`~dupmae_ir.serve.following.Follower`: ``index sync --watch`` that ends with its service."""

from __future__ import annotations

import os
import runpy
import signal
import threading

NICENESS = 5
"""How far its priority is below the service's: with both processors busy, it has a third of the service's share."""


def follow() -> None:
    """Run ``dupmae-ir index`` with the words of this process's command."""
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    # Reading files and encoding can wait, and those who search cannot.
    if hasattr(os, "nice"):  # not on Windows
        os.nice(NICENESS)
    runpy.run_module("dupmae_ir.index", run_name="__main__", alter_sys=True)


def _end_with_the_service() -> None:
    # The service writes nothing: reading ends when its end of the pipe is closed, which a kill does, too. Not with
    # sys.stdin, whose lock would prevent the end of the interpreter.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
