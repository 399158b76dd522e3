"""The unfinished work of one target: a hidden folder beside it that a killed run leaves and the next one continues.

``.I.encoding/state.json`` says with which settings it began, ``part-000000.safetensors`` and so on are the finished
windows, ``index/`` is the index while it is being built. Nothing here is ever read by a search.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dupmae_ir.config import differences
from dupmae_ir.encode.windows import Part, load_part, part_digest, save_part
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.io.publishing import write_json

FORMAT = 1


class Work:
    """See the module's text. Use :meth:`open`; the caller holds the lock of the target."""

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self.folder = folder
        self.state = state

    @classmethod
    def folder_of(cls, target: Path) -> Path:
        return target.with_name(f".{target.name}.encoding")

    @classmethod
    def open(cls, target: Path, settings: Mapping[str, Any], restart: bool = False) -> Work:
        """Continue the work that was begun with these ``settings``, or prepare new work. Other settings are refused.

        Nothing is written before :meth:`begin`.
        """
        folder = cls.folder_of(target)
        found = None if restart else _read_state(folder)
        if found is None or not cls(folder, found).numbers():
            new = {"format": FORMAT, "id": uuid.uuid4().hex, "settings": dict(settings)}
            return cls(folder, {**new, "scale": None, "scale_source": None})
        if changed := differences(found["settings"], settings):
            raise IndexMismatch(
                f"{target}: unfinished work was begun with other settings ({changed}); "
                f"run the first command again to finish it, or add --restart to throw it away"
            )
        return cls(folder, found)

    def begin(self) -> None:
        """Make the folder; litter of other work goes."""
        if _read_state(self.folder) != self.state:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self._save()

    @property
    def id(self) -> str:
        """What tells this work from every other, in the meta of the index and of the representation files."""
        return self.state["id"]

    @property
    def scale(self) -> float | None:
        return self.state["scale"]

    def set_scale(self, scale: float, source: str) -> None:
        """Fix the scale before the first part is written; later runs take it from here."""
        self.state.update(scale=scale, scale_source=source)
        self._save()

    def numbers(self) -> list[int]:
        """The finished windows, ascending."""
        return sorted(int(p.stem.removeprefix("part-")) for p in self.folder.glob("part-*.safetensors"))

    def path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.safetensors"

    def has(self, number: int, documents: str, source: str) -> bool:
        """Whether window ``number`` is finished; :class:`IndexMismatch` when it was made from other documents."""
        path = self.path(number)
        if not path.exists():
            return False
        if part_digest(path) != documents:
            raise self.changed(source, f"window {number} holds other documents now")
        return True

    def changed(self, source: str, how: str) -> IndexMismatch:
        """The error for an input that is not the one the work began with."""
        return IndexMismatch(
            f"{source}: the input changed since the work began ({how}); put it back, or start over with --restart"
        )

    def save(self, number: int, part: Part, documents: str) -> None:
        save_part(self.path(number), part, documents)

    def parts(self) -> Iterator[Part]:
        """Every finished part in order, one in memory at a time."""
        for number in self.numbers():
            yield load_part(self.path(number))

    def remove(self) -> None:
        """The state first: without it the rest is litter that the next run sweeps away."""
        (self.folder / "state.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _save(self) -> None:
        write_json(self.folder / "state.json", self.state)


def sweep(target: Path, work: str) -> None:
    """Remove what is left of the work with the id ``work``, which became ``target``; other work stays."""
    folder = Work.folder_of(target)
    state = _read_state(folder)
    if state and state["id"] == work:
        Work(folder, state).remove()


def recover(target: Path) -> None:
    """Undo what a kill between the two renames of a replacement left: the old index comes back, or goes for good."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.\d+\.old")
    for old in [p for p in target.parent.glob(".*.old") if ours.fullmatch(p.name)]:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.replace(target)
    # Neighbours that an interrupted atomic write could not take away itself.
    for aside in Work.folder_of(target).glob(".*.tmp"):
        aside.unlink(missing_ok=True)


def _read_state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return state if state.get("format") == FORMAT else None
