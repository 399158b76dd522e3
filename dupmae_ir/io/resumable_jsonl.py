"""A resumable JSONL writer: lines appended in windows, each on the disk before the next begins.

A killed run leaves the whole windows it wrote. The next one drops a torn tail and continues at the start of a window,
so that rows which depend on the others of their window come out as in an undisturbed run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonlines


class ResumableJsonl:
    """The lines of ``path`` so far: ``done`` of ``total`` are there. The caller holds the lock of the output.

    ``window`` is the number of rows that are computed together.
    """

    def __init__(self, path: str | Path, total: int, window: int) -> None:
        self.path = Path(path)
        self.done = self._keep_whole_windows(total, window)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write one window of rows; they are on the disk when this returns."""
        with open(self.path, "ab") as f:
            jsonlines.Writer(f).write_all(rows)
            f.flush()
            os.fsync(f.fileno())
        self.done += len(rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows so far."""
        with jsonlines.open(self.path) as lines:
            yield from lines.iter(type=dict)

    def _keep_whole_windows(self, total: int, window: int) -> int:
        """Truncate the file after its last whole window and return how many lines it holds."""
        ends = [0]
        with open(self.path, "a+b") as f:
            f.seek(0)
            for line in f:
                # A crash of the machine may leave a run of zeros where a line should be.
                if not (line.startswith(b"{") and line.endswith(b"}\n")):
                    break
                ends.append(ends[-1] + len(line))
            lines = len(ends) - 1
            kept = lines if lines == total else lines - lines % window
            f.truncate(ends[kept])
        return kept
