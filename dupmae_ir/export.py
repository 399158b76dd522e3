"""``dupmae-ir export``: a part of a model for sentence-transformers, or the model as a graph or with 8-bit weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dupmae_ir.command import Command, load
from dupmae_ir.config import OutputOptions, option
from dupmae_ir.io.jobs import Job
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.names import model_folder

WRITERS = "dupmae_ir.models.checkpoints."
"""The packages of the writers, which are imported when the format is known."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig(OutputOptions):
    """Write one part of a model in the format of sentence-transformers (5.0 or later): cls opens as a
    SentenceTransformer, ot as a SparseEncoder. The export uses only its own modules and gives the same vectors as
    dupmae-ir. With --to onnx or --to openvino, write one graph with both parts for these runtimes; word weights in
    closed form, such as the embedded model's, are not in it. With --to compact, write a model folder with weights in 8
    bits, about half the size of float16, which every command here reads.

    Examples:
        dupmae-ir export --model checkpoints/mine --output exported/dense
        dupmae-ir export --model checkpoints/mine --part ot --output exported/sparse
        dupmae-ir export --model checkpoints/mine --to onnx --int8 --output exported/onnx
        dupmae-ir export --model checkpoints/mine --to compact --output checkpoints/small
    """

    output: str = option(help="folder to create", metavar="FOLDER")
    model: str | None = option(
        None, "model folder or name (default: the embedded model)", metavar="MODEL"
    )
    to: str = option(
        "sentence-transformers",
        "format: sentence-transformers; onnx or openvino: one graph with both parts; or compact: a model folder of "
        "this toolkit with weights in 8 bits",
        choices=("sentence-transformers", "onnx", "openvino", "compact"),
    )
    part: str = option(
        "cls",
        "dense vectors (cls) or sparse vectors (ot)",
        choices=("cls", "ot"),
        only_with="to=sentence-transformers",
    )
    keep: tuple[str, ...] = option(
        (),
        "parts of the names of matrices that stay in float16, for example layer.5.attention.self.value",
        metavar="NAME",
        only_with="to=compact",
    )
    int8: bool = option(
        False,
        "also write the graph with weights in 8 bits, and print what that loses",
        only_with="to=onnx",
    )
    overwrite: bool = option(False, "replace an existing export")


def run(config: ExportConfig) -> dict[str, object]:
    """Export ``config.model`` to ``config.output``.

    Returns what the writer of the format returns:
    :func:`~dupmae_ir.models.checkpoints.sentence_transformers.write_sentence_transformers`,
    :func:`~dupmae_ir.models.checkpoints.onnx_graph.write_graph` or
    :func:`~dupmae_ir.models.checkpoints.saving.write_compact`. Raises
    :class:`CheckpointError` for a model that does not load or lacks the part; see :mod:`dupmae_ir.io.jobs` for an
    output that exists.
    """
    model = model_folder(config.model)
    # Other formats have both parts, so the option is no setting of them.
    part = config.part if config.to == "sentence-transformers" else None
    settings = {"to": config.to, "part": part, "keep": list(config.keep), "int8": config.int8}
    with Job(
        config.output,
        "export",
        settings,
        lambda: {"model": folder_digest(model)},
        overwrite=config.overwrite,
        restart=True,
        quiet=config.quiet,
    ) as job:
        result = job.finished()
        if result:
            return result
        target = job.begin() / "export"
        if config.to == "compact":
            result = load(f"{WRITERS}saving:write_compact")(model, target, config.keep)
        elif config.to == "sentence-transformers":
            result = load(f"{WRITERS}sentence_transformers:write_sentence_transformers")(
                model, target, config.part
            )
        else:
            result = load(f"{WRITERS}onnx_graph:write_graph")(model, target, config.to, config.int8)
        return job.publish(target, result)


def summarize(config: ExportConfig, result: Mapping[str, Any]) -> str:
    """``exported/dense: SentenceTransformer of Transformer, Pooling, Dense``, or sizes and differences."""
    if config.to == "compact":
        return f"{config.output}: {result['bytes'] / 1e6:.1f} MB, {result['matrices']} matrices in 8 bits"
    if config.to in ("onnx", "openvino"):
        graphs = []
        for name, size in result["bytes"].items():
            differences = []
            for part, value in result["differences"][name].items():
                differences.append(f"{part} {value:.3g}")
            graphs.append(f"{name} {size / 1e6:.1f} MB ({', '.join(differences)})")
        return f"{config.output}: {' and '.join(result['parts'])} in {', '.join(graphs)}"
    routed = "for each side " if result["routed"] else ""
    return f"{config.output}: {result['kind']} of {routed}{', '.join(result['modules'])}"


main = Command("export", ExportConfig, "dupmae_ir.export:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
