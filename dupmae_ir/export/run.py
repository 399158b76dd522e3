"""Exports one part of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dupmae_ir.errors import UsageError
from dupmae_ir.export.config import ExportConfig
from dupmae_ir.io.jobs import Job
from dupmae_ir.models.checkpoints.digest import folder_digest
from dupmae_ir.models.checkpoints.names import model_folder
from dupmae_ir.models.checkpoints.sentence_transformers import write_sentence_transformers


class ExportJob(Job):
    """A :class:`Job` that may also replace exports from before exports had records."""

    def check_replaceable(self) -> None:
        """Raise if the target has a record of another command; :func:`_check_output` has seen its modules.json."""
        if (self.target / self.record_name).is_file():
            super().check_replaceable()


def run(config: ExportConfig) -> dict[str, Any]:
    """Export ``config.model`` to ``config.output``.

    Returns ``kind``, ``modules`` and ``routed`` of
    :func:`~dupmae_ir.models.checkpoints.sentence_transformers.write_sentence_transformers`. Raises
    :class:`CheckpointError` for a model that does not load or lacks the part; see :mod:`dupmae_ir.io.jobs` for an
    output that exists.
    """
    _check_output(Path(config.output), config.overwrite)
    model = model_folder(config.model)
    settings = {"to": config.to, "part": config.part}
    with ExportJob(
        config.output,
        "export",
        settings,
        lambda: {"model": folder_digest(model)},
        overwrite=config.overwrite,
        restart=True,
        quiet=config.quiet,
    ) as job:
        if result := job.finished():
            return result
        work = job.begin()
        written = write_sentence_transformers(model, work / "export", config.part)
        return job.publish(work / "export", written)


def _check_output(output: Path, overwrite: bool) -> None:
    """Only an export may be replaced, and only with --overwrite."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / "modules.json").is_file():
        raise UsageError(f"{output}: exists and is not a sentence-transformers folder; choose another --output")
    if not overwrite and not (output / "made.json").is_file():
        raise UsageError(f"{output}: already exists; add --overwrite to replace it")
