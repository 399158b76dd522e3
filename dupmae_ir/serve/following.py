"""``serve --watch FOLDER``: a process beside the service that keeps its index in step with folders.

It is ``index sync --watch``: what it commits, the service takes in as any new generation. A process that ends is
started again, and then compares the complete folders.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

RELOAD_SECONDS = 0.5
"""How often a followed index is looked at: a change is to be found two seconds after it was saved."""
_RESTART_SECONDS = 5.0
"""Time until a process that ended is started again; longer than its start, so that a lasting failure costs little."""
LOG = logging.getLogger("dupmae_ir.serve")


class Follower:
    """The process that follows some folders, for one index."""

    def __init__(self, index: Path, folders: Sequence[str]) -> None:
        self.folders = tuple(folders)
        #: when the index was last compared or changed, in UTC; None before
        self.in_step: datetime | None = None
        self._command = (
            *(sys.executable, "-c", "from dupmae_ir.serve.followed import follow; follow()"),
            *("sync", "--index", str(index), "--corpus", *folders, "--watch"),
        )
        self._stopped = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="following", daemon=True)

    def start(self) -> None:
        """Start following, in a thread of its own."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """End the process; a change that it is making is finished or left to the next one."""
        self._stopped.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._follow()
            if self._stopped.wait(_RESTART_SECONDS):
                return
            LOG.warning("following %s: started again", ", ".join(self.folders))

    def _follow(self) -> None:
        """Run the process to its end, and hand on what it says."""
        # Progress bars are for terminals; what is said comes line by line.
        with (
            subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,  # nothing is written: its end tells the process that the service has ended
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            ) as process
        ):
            self._process = process
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    LOG.info("%s", line.rstrip())
                    # It says when it begins to watch, after having compared everything, and each change after that.
                    if line.startswith("watching ") or line[:2].isdigit():
                        self.in_step = datetime.now(UTC)
            finally:
                process.terminate()
