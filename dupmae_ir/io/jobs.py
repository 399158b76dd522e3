"""One job, one output: locked while it is made, recorded, resumed after a kill, published whole.

    with Job(target, "finetune.mine", settings, inputs) as job:
        if result := job.finished():
            return result
        work = job.begin()                  # a hidden folder beside the target; a killed run's is continued
        ...                                 # write into it, in pieces that are each whole on the disk
        return job.publish(work / "lines.jsonl", {"queries": 300}) | {"seconds": 12.5}

Every command that makes something uses this shell, so all of them answer alike: run again after success, they return
the recorded result; with other settings they are refused and name each difference; a second process at once is
refused and names the holder; after a kill at any moment the next run recovers and continues.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NotRequired, Self, TypedDict, cast

from dupmae_ir import __version__
from dupmae_ir.config import differences
from dupmae_ir.console import say
from dupmae_ir.errors import DupmaeError, IndexMismatch, InputError, UsageError
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import (
    disk_full,
    move_into_place,
    read_json,
    recover,
    sweep,
    write_json,
)

STATE = "job.json"
STAGED = ".record"
RECORD = "made.json"
"""Name of the record inside a folder."""
COMPLETE = "already complete"
"""``status`` in the result of a job that found its output made."""
DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)
"""When :func:`time.monotonic` says this, a change of an index ends without having changed it."""

Digests = Mapping[str, str]


class JobRecord(TypedDict):
    """What a job writes about its output; :meth:`Job.publish` may add keys."""

    made_by: str  #: ``dupmae-ir`` and the command
    version: NotRequired[str]
    settings: Mapping[str, Any]  #: what decides the contents, by field name
    inputs: Mapping[str, str]  #: digests of what was read
    result: Mapping[str, Any]


class Job:
    """See the module's text. Commands with flags for it override the two pieces of advice.

    Args:
        target: the file or folder to make.
        command: verb of the command, for the record and for messages (``"finetune.mine"``).
        settings: what decides the contents, by field name; paths as names, without what only affects speed or printing.
        inputs: digests of the files and folders that are read, by the field that names them; a function where they
            are costly.
        streamed: the inputs are read once, as a stream, so their digests are known only at the end, when they are
            given to :meth:`publish`. ``inputs`` must then be a function; it is called only for a finished output.
        record: name of the record inside a folder; a file's record lies beside it as ``TARGET.meta.json``.
        overwrite: replace an existing output of this command once the new one is complete. Anything else is refused.
        restart: discard the unfinished work of an earlier run.
        resumable: whether unfinished work can be continued. Otherwise it is discarded at the end of a failed run and
            at the beginning of the next.
    """

    ADVICE = (
        "Name another output, or remove it"  #: what to do about an output made with other settings
    )
    START_OVER = "remove {work}"  #: how to discard unfinished work

    def __init__(
        self,
        target: str | Path,
        command: str,
        settings: Mapping[str, Any],
        inputs: Digests | Callable[[], Digests] | None = None,
        *,
        streamed: bool = False,
        record: str = RECORD,
        overwrite: bool = False,
        restart: bool = False,
        resumable: bool = True,
        quiet: bool = False,
    ) -> None:
        self.output = str(target)
        self.target = Path(target).absolute()
        self.command = command
        self.settings = _plain(settings)
        self.record_name = record
        self.overwrite = overwrite
        self.restart = restart
        self.quiet = quiet
        self._inputs = inputs
        self._streamed = streamed
        self._resumable = resumable
        self._stack = ExitStack()

    @property
    def work(self) -> Path:
        """The hidden folder beside the target that holds unfinished work; nothing else reads it."""
        return work_folder(self.target)

    @property
    def inputs(self) -> dict[str, str]:
        """Digests of what is read."""
        if callable(self._inputs):
            self._inputs = self._inputs()
        return dict(self._inputs or {})

    def __enter__(self) -> Self:
        what = f"running {self.command} into {self.target}"
        self._stack.enter_context(exclusive(lock_path(self.target), what, quiet=self.quiet))
        recover(self.target)
        sweep(self.target)
        self._finish_publishing()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        unused = not self._resumable or {p.name for p in _entries(self.work)} <= {STATE}
        if unused and not self._waiting():  # nothing was done that a resumption could use
            self.discard()
        self._stack.close()
        # An error of this package says more about the full disk already.
        if not isinstance(error, Exception) or isinstance(error, DupmaeError):
            return
        full = disk_full(error, self.target.parent)
        if full:
            raise full from error

    def finished(self) -> dict[str, Any] | None:
        """The recorded result where the target was made with these settings and inputs; None where there is nothing.

        Raises :class:`IndexMismatch` for one made with others, :class:`UsageError` for an output of unknown origin.
        """
        if not (_entries(self.target) if self.target.is_dir() else self.target.exists()):
            return None
        if self.overwrite:
            self.check_replaceable()
            return None
        made = self.recorded()
        self._check_maker(made)
        changed = self._changed(made)
        if changed:
            raise IndexMismatch(
                f"{self.target} already exists with other settings: {changed}. {self.ADVICE}"
            )
        begun = read_json(self.work / STATE)
        if begun is None or not differences(begun["settings"], self.settings):
            self.discard()  # what a kill at the end of publish left; work with other settings stays
        say(f"{self.target} is already complete, made with these settings and inputs", self.quiet)
        return {"output": self.output, "status": COMPLETE, **made["result"]}

    def begin(self) -> Path:
        """The work folder, new or continued. Raises :class:`IndexMismatch` where it was begun with other settings."""
        state = self.work / STATE
        begun = read_json(state)
        if begun is not None and self._resumable and not self.restart:
            changed = self._changed(begun)
            if changed:
                raise IndexMismatch(
                    f"{self.target}: unfinished work was begun with other settings: {changed}. Run the first command "
                    f"again to finish it, or {self.START_OVER.format(work=self.work)} to start over"
                )
            for torn in self.work.glob(".*.tmp"):
                torn.unlink(missing_ok=True)  # the lock is ours, so their writers are gone
            return self.work
        made = self._made(
            {} if self._streamed else self.inputs
        )  # an unreadable input must not leave a folder behind
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        write_json(state, made)
        return self.work

    def check_deadline(self) -> None:
        """Raise :class:`TimeoutError` after :data:`DEADLINE`; what was done stays in the work folder."""
        if time.monotonic() > DEADLINE.get():
            raise TimeoutError(f"{self.target}: not changed in time")

    def fresh(self, name: str) -> Path:
        """A path in the work folder with nothing at it; what a killed run left there is removed."""
        path = self.work / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        return path

    def publish(
        self,
        made: Path,
        result: Mapping[str, Any],
        extra: Mapping[str, Any] | None = None,
        inputs: Digests | None = None,
    ) -> dict[str, Any]:
        """Record ``result``, let ``made`` (a file or folder on the target's file system) become the target, and
        remove the work. Returns ``result`` with the output's name and a status.

        ``result`` is what the same inputs and settings always give: no seconds, no paths. ``extra`` is stored in the
        record beside the job's own keys. ``inputs``: their digests, for a job with ``streamed`` inputs.
        """
        made_from = self.inputs if inputs is None else dict(inputs)
        self.write_record(
            made, {**self._made(made_from), "result": _plain(result), **(extra or {})}
        )
        move_into_place(made, self.target)
        self._finish_publishing()
        shutil.rmtree(self.work, ignore_errors=True)
        return {"output": self.output, "status": "complete", **result}

    def discard(self) -> None:
        """Remove the work of a run that finished nothing worth continuing."""
        shutil.rmtree(self.work, ignore_errors=True)

    def recorded(self) -> JobRecord:
        """The record of the existing target: ``made_by``, ``settings``, ``inputs`` and ``result``.

        Overridden where the target has a record of its own form. Raises :class:`InputError` where there is none.
        """
        return read_record(self.target, self.record_name)

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:
        """Store the record of ``made``, which is about to become the target. Overridden as :meth:`recorded` is."""
        write_json(
            made / self.record_name if made.is_dir() else self.work / f"{made.name}{STAGED}", record
        )

    def _finish_publishing(self) -> None:
        """Move the record of a file beside it once the file is in place, also for a run that was killed in between.

        The record waits in the work folder until then, so that it never describes an older file.
        """
        waiting = self._waiting()
        for record in self.work.glob(f"*{STAGED}"):
            if record in waiting:
                move_into_place(record, record_path(self.target))
            else:
                record.unlink()  # killed before the file was moved: it is published again

    def _waiting(self) -> list[Path]:
        """The record of a file that was moved, until it is beside it."""
        records = self.work.glob(f"*{STAGED}")
        return [
            record
            for record in records
            if not (self.work / record.name.removesuffix(STAGED)).exists()
        ]

    def check_replaceable(self) -> None:
        """Raise unless the existing target is an output of this command, which ``overwrite`` may replace."""
        self._check_maker(self.recorded())

    def _check_maker(self, made: JobRecord) -> None:
        if made["made_by"] != f"dupmae-ir {self.command}":
            raise UsageError(f"{self.target}: made by {made['made_by']}; name another output")

    def _made(self, inputs: Digests) -> Mapping[str, object]:
        return {
            "made_by": f"dupmae-ir {self.command}",
            "version": __version__,
            "settings": self.settings,
            "inputs": dict(inputs),
        }

    def _changed(self, made: Mapping[str, Any]) -> str:
        """The settings that differ, with both values; where they agree, the inputs that do."""
        changed = differences(made["settings"], self.settings)
        if changed:
            return changed
        if self._streamed and not made["inputs"]:
            return ""  # unfinished work, whose pieces the command compares with what it reads
        before = made["inputs"]
        now = self.inputs
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return ", ".join(f"the contents of `{name}`" for name in names)


def work_folder(target: str | Path) -> Path:
    """Where the unfinished work of ``target`` lies."""
    return Path(target).with_name(f".{Path(target).name}.work")


def record_path(target: str | Path) -> Path:
    """Where the record of a file lies."""
    return Path(f"{target}.meta.json")


def read_record(target: str | Path, name: str = RECORD) -> JobRecord:
    """The record of a finished target: ``made_by``, ``settings``, ``inputs``, ``result`` and what the job added.

    Raises :class:`InputError` where there is none, or one of something else.
    """
    path = Path(target) / name if Path(target).is_dir() else record_path(target)
    if not path.is_file():
        raise InputError(
            f"{target}: exists without its record {path.name}; name another output, or remove it"
        )
    record = read_json(path)
    if (
        not isinstance(record, dict)
        or not {"made_by", "settings", "inputs", "result"} <= record.keys()
    ):
        raise InputError(
            f"{path}: not a record of this toolkit; name another output, or remove {target}"
        )
    return cast("JobRecord", record)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _plain(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """As JSON gives it back."""
    return json.loads(json.dumps(value))
