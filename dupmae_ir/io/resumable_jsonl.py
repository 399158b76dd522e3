"""A file of JSON lines that takes hours, whatever happens in between.

The lines grow in a hidden folder beside the target, a window of them at a time, each on the disk before the next is
begun. A killed run leaves them; the next one drops a torn tail and goes on at the start of a window, so that what
depends on the company in a window comes out as undisturbed. Complete, the file takes its place at once, and
``TARGET.meta.json`` beside it says how it was made.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dupmae_ir.config import differences
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.io.publishing import fsync_folder, write_json


def meta_path(target: str | Path) -> Path:
    """Where the record of ``target`` lies."""
    return Path(f"{target}.meta.json")


def read_meta(target: str | Path) -> dict[str, Any]:
    """The record of a finished ``target``. Raises :class:`InputError` where there is none."""
    path = meta_path(target)
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: not there; it belongs beside {target}, which it describes") from None
    except (OSError, ValueError) as e:
        raise InputError(f"{path}: cannot be read: {e}") from None
    if not isinstance(meta, dict) or not isinstance(meta.get("settings"), dict):
        raise InputError(f"{path}: not a record of this toolkit (no settings in it)")
    return meta


def finished(target: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of ``target`` where it was made with these ``settings``; None where it is not there.

    Raises :class:`IndexMismatch` for one that was made with others, :class:`UsageError` for a file of unknown origin.
    """
    if not target.exists():
        return None
    if target.is_dir() or not meta_path(target).is_file():
        raise UsageError(f"{target}: already there, and nothing says how it was made; name another --output")
    meta = read_meta(target)
    if changed := differences(meta["settings"], _plain(settings)):
        raise IndexMismatch(
            f"{target} is complete with other settings ({changed}); name another --output, or remove it"
        )
    shutil.rmtree(work_folder(target), ignore_errors=True)
    return meta


def work_folder(target: Path) -> Path:
    """Where the lines of ``target`` grow."""
    return target.with_name(f".{target.name}.growing")


class Growing:
    """The lines of ``target`` so far: ``done`` of the ``total`` are there. The caller holds the lock of the target.

    Raises :class:`IndexMismatch` for work that was begun with other ``settings``.
    """

    def __init__(self, target: Path, settings: Mapping[str, Any], total: int, window: int) -> None:
        self.target, self.folder = target, work_folder(target)
        self.path = self.folder / "lines.jsonl"
        self._begin(_plain(settings))
        self.done = self._whole(total, window)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """One window of lines, on the disk when this returns."""
        with open(self.path, "ab") as f:
            f.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
            f.flush()
            os.fsync(f.fileno())
        self.done += len(rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """What is there, line by line."""
        with open(self.path, encoding="utf-8") as f:
            yield from map(json.loads, f)

    def finish(self, meta: Mapping[str, Any]) -> None:
        """Publish the record, then the lines: a target that is there is complete and has its record."""
        write_json(meta_path(self.target), meta)
        self.path.replace(self.target)
        fsync_folder(self.target.parent)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, settings: dict[str, Any]) -> None:
        state = self.folder / "settings.json"
        if not state.is_file():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            write_json(state, settings)
        elif changed := differences(json.loads(state.read_text(encoding="utf-8")), settings):
            raise IndexMismatch(
                f"{self.target}: unfinished work was begun with other settings ({changed}); run the first command "
                f"again to finish it, or remove {self.folder}"
            )

    def _whole(self, total: int, window: int) -> int:
        """Count the whole lines and cut off what follows the last whole window."""
        ends = [0]
        with open(self.path, "a+b") as f:
            f.seek(0)
            for line in f:
                # A crash of the machine may leave a hole of zeros where a line should be.
                if not (line.startswith(b"{") and line.endswith(b"}\n")):
                    break
                ends.append(ends[-1] + len(line))
            lines = len(ends) - 1
            kept = lines if lines == total else lines - lines % window
            f.truncate(ends[kept])
        return kept


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives them back."""
    return json.loads(json.dumps(settings))
