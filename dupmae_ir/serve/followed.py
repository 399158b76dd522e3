"""The process of a :class:`~dupmae_ir.serve.following.Follower`: ``index sync --watch``, which ends with its service.

python -m dupmae_ir.serve.followed --index INDEX --corpus FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

from dupmae_ir.index.__main__ import main as index


def main(words: Sequence[str]) -> int:
    """Watch, with these words of the command. Returns the exit status."""
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    return index(["sync", *words, "--watch"])


def _end_with_the_service() -> None:
    # The service writes nothing: reading ends when its end of the pipe is closed, which a kill does, too. Not with
    # sys.stdin, whose lock would prevent the end of the interpreter.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
