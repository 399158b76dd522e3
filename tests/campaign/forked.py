"""Commands in forked processes: the imports are done once, and a child can be killed without warning."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


def start(work: Callable[[], int], errors: Path) -> int:
    """Run ``work`` in a child with its standard output and error in the file ``errors``; returns its process id.

    No JVM may run in this process, since a child could not use it.
    """
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        os.setpgid(0, 0)
        out = os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        status = work()
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def finished(child: int) -> int:
    """Wait for the end of a child; returns its exit status, minus the signal for one that was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_after(child: int, seconds: float) -> bool:
    """Kill a child and its own children after ``seconds``; False if it ended before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(min(0.002, max(0.0, end - time.monotonic())))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    ended = finished(child)
    with contextlib.suppress(ProcessLookupError):
        while True:  # until the last of them has ended and let go of its locks
            os.killpg(child, 0)
            time.sleep(0.002)
    return ended < 0
