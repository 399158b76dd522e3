"""Exports one part of a model for sentence-transformers, or the whole model as a graph or with weights in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dupmae_ir.errors import UsageError
from dupmae_ir.export.config import ExportConfig
from dupmae_ir.io.jobs import Job
from dupmae_ir.models.checkpoints.compact import write_compact
from dupmae_ir.models.checkpoints.layout import COMPACT, UNTIED, folder_digest
from dupmae_ir.models.checkpoints.onnx_graph import SETTINGS, write_graph
from dupmae_ir.models.checkpoints.sentence_transformers import write_sentence_transformers
from dupmae_ir.models.names import model_folder


class ExportJob(Job):
    """A :class:`Job` that may also replace exports from before exports had records."""

    def check_replaceable(self) -> None:
        """Raise if the target has a record of another command; :func:`_check_output` has seen its modules.json."""
        if (self.target / self.record_name).is_file():
            super().check_replaceable()


def run(config: ExportConfig) -> dict[str, Any]:
    """Export ``config.model`` to ``config.output``.

    Returns what the writer of the format returns:
    :func:`~dupmae_ir.models.checkpoints.sentence_transformers.write_sentence_transformers`,
    :func:`~dupmae_ir.models.checkpoints.onnx_graph.write_graph` or
    :func:`~dupmae_ir.models.checkpoints.compact.write_compact`. Raises
    :class:`CheckpointError` for a model that does not load or lacks the part; see :mod:`dupmae_ir.io.jobs` for an
    output that exists.
    """
    _check_output(Path(config.output), config.overwrite)
    model = model_folder(config.model)
    settings: dict[str, Any] = {
        "to": config.to,
        "part": config.part if config.to == "sentence-transformers" else None,
        "keep": list(config.keep),
    }
    settings |= {"int8": True} if config.int8 else {}
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
        target = work / "export"
        return job.publish(target, _write(config, model, target))


def _write(config: ExportConfig, model: Path, target: Path) -> dict[str, Any]:
    if config.to == "compact":
        return write_compact(model, target, config.keep)
    if config.to == "sentence-transformers":
        return write_sentence_transformers(model, target, config.part)
    return write_graph(model, target, config.to, config.int8)


def _check_output(output: Path, overwrite: bool) -> None:
    """Only an export may be replaced, and only with --overwrite."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not any(
        (output / name).is_file() for name in ("modules.json", SETTINGS, COMPACT, f"{UNTIED['query']}/{COMPACT}")
    ):
        raise UsageError(f"{output}: exists and is not an exported model; choose another `output`")
    if not overwrite and not (output / "made.json").is_file():
        raise UsageError(f"{output}: already exists; add `overwrite` to replace it")
