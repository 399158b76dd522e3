"""``--share-work``: finished shards at the URL of the index, so that another machine can continue.

    s3://bucket/I/work/state.json             the settings of the run and the impact scale
    s3://bucket/I/work/part-000003-SHA256     a finished shard; its name contains the sha256 of its bytes

The machine that runs the command may be lost with its disk. The same command on another one receives the shards that
are here, compares each with its name, and encodes the others. An object appears whole, or is recognised as damaged and
encoded again. The objects are removed once the index is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dupmae_ir.config import differences
from dupmae_ir.console import say
from dupmae_ir.encode.window_files import STATE as PARTS_STATE
from dupmae_ir.encode.window_files import PartStore
from dupmae_ir.errors import DupmaeError, EnvironmentProblem, IndexMismatch, InputError
from dupmae_ir.io.jobs import STATE as JOB_STATE
from dupmae_ir.io.publishing import move_into_place, sha256_file, write_json
from dupmae_ir.io.remote import Remote, json_object

FOLDER = "work"
_STATE = "state.json"
_PART = re.compile(r"part-(\d{6,})-([0-9a-f]{64})")


class SharedWork:
    """The work at the URL ``index``, for the work folder ``folder`` of this machine."""

    def __init__(self, index: Remote, folder: Path, quiet: bool) -> None:
        self.remote, self.folder, self.quiet = index / FOLDER, folder, quiet
        self._sent: set[int] = set()
        self._state: Mapping[str, Any] = {}

    def receive(self, settings: Mapping[str, Any]) -> None:
        """Put the finished shards that are at the URL into the work folder, unless they are there.

        Raises :class:`IndexMismatch` for work that was begun with other settings.
        """
        state = json_object((self.remote / _STATE).read())
        if not {"job", "parts"} <= state.keys():
            return
        if changed := differences(state["job"]["settings"], settings):
            raise IndexMismatch(
                f"{self.remote}: unfinished work was begun with other settings: {changed}. Run the first command again "
                "to finish it, or pass --restart to start over"
            )
        if not any(self.folder.glob("part-*")):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / PARTS_STATE, state["parts"])
            write_json(self.folder / JOB_STATE, state["job"])
        parts = PartStore(self.folder)
        if parts.scale != (scale := state["parts"]["scale"]):
            raise IndexMismatch(
                f"{self.remote}: finished shards of another collection (impact scale {scale} instead of "
                f"{parts.scale}); pass --restart to start over"
            )
        self._state = state
        received = sum(self._receive(remote, parts) for remote in self._objects())
        if received:
            say(f"{self.remote}: {received} finished shard(s) of another machine", self.quiet)

    def _receive(self, remote: Remote, parts: PartStore) -> bool:
        found = _PART.fullmatch(remote.name)
        if found is None:
            return False
        path = parts.path(int(found[1]))
        if path.exists():
            self._sent.add(int(found[1]))
            return False
        aside = path.with_name(f".{path.name}.tmp")  # removed by the next run, if it stays
        aside.unlink(missing_ok=True)
        try:
            digest = remote.fetch(aside)
        except FileNotFoundError:
            return False
        if digest != found[2]:
            aside.unlink()
            remote.remove()
            say(
                f"note: {remote} is damaged: its sha256 is not the one in its name; the shard is encoded again",
                self.quiet,
            )
            return False
        move_into_place(aside, path)
        self._sent.add(int(found[1]))
        return True

    def send(self, parts: PartStore, number: int, name: str) -> None:
        """Copy a finished shard to the URL, unless it is there; ``name`` stands for it in messages."""
        if number in self._sent:
            return
        path = parts.path(number)
        try:
            self._send_state()
            (self.remote / f"part-{number:06d}-{sha256_file(path)}").send(path)
        except EnvironmentProblem as e:
            raise EnvironmentProblem(f"{name}: {e}") from None
        self._sent.add(number)

    def _send_state(self) -> None:
        """The settings and the scale, before the first shard that they belong to."""
        read = {name: (self.folder / file).read_bytes() for name, file in (("job", JOB_STATE), ("parts", PARTS_STATE))}
        state = {name: json_object(raw) for name, raw in read.items()}
        if state != self._state:
            (self.remote / _STATE).write_json(state)
            self._state = state

    def remove(self) -> None:
        """Remove the work at the URL: the state last, so that what a kill leaves is removed by the next run."""
        objects = self._objects()
        for remote in sorted(objects, key=lambda remote: remote.name == _STATE):
            remote.remove()

    def _objects(self) -> list[Remote]:
        try:
            return self.remote.files() or []
        except InputError:
            return []  # nothing is there


def remove_shared_work(index: Remote, quiet: bool) -> None:
    """Remove what ``--share-work`` left at the URL of a finished index."""
    try:
        SharedWork(index, Path(), quiet).remove()
    except DupmaeError as e:
        say(f"note: {e}; the index is complete, but {index / FOLDER} was not removed", quiet)
