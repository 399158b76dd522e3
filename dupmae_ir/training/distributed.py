"""One :class:`~dupmae_ir.io.jobs.Job` for all processes of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from dupmae_ir.io.jobs import Job


class DistributedJob:
    """A job that the main process enters, and whose answers all processes receive.

    Used like a :class:`~dupmae_ir.io.jobs.Job`; an error in the main process ends the others through ``torchrun``.
    """

    def __init__(self, job: Job, state: PartialState) -> None:
        self.job, self.state = job, state

    def __enter__(self) -> DistributedJob:
        if self.state.is_main_process:
            self.job.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state.is_main_process:
            self.job.__exit__(kind, error, trace)

    def finished(self) -> dict[str, Any] | None:
        """The result of an earlier run, in every process; see :meth:`Job.finished`."""
        found = [self.job.finished() if self.state.is_main_process else None]
        broadcast_object_list(found)
        return found[0]

    def begin(self) -> Path:
        """The work folder, ready in every process; see :meth:`Job.begin`."""
        if self.state.is_main_process:
            self.job.begin()
        self.state.wait_for_everyone()
        return self.job.work

    def publish(
        self, made: Path, result: Mapping[str, Any], extra: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """:meth:`Job.publish` in the main process; None in the others."""
        return self.job.publish(made, result, extra) if self.state.is_main_process else None
