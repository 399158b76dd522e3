"""Options of ``dupmae-ir export``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option


@dataclass(frozen=True, kw_only=True)
class ExportConfig(OutputOptions):
    """Write one part of a model in the format of sentence-transformers (5.0 or later): cls opens as a
        SentenceTransformer,
    ot as a SparseEncoder. The export uses only its own modules and gives the same vectors as dupmae-ir. With --to onnx
    or --to openvino, write one graph with both parts for these runtimes. With --to compact, write a model folder with
    weights in 8 bits, about half the size of float16, which every command here reads.

    Examples:
        python -m dupmae_ir.export --model checkpoints/mine --output exported/dense
        python -m dupmae_ir.export --model checkpoints/mine --part ot --output exported/sparse
        python -m dupmae_ir.export --model checkpoints/mine --to onnx --int8 --output exported/onnx
        python -m dupmae_ir.export --model checkpoints/mine --to compact --output checkpoints/small
    """

    output: str = option(help="folder to create", metavar="FOLDER")
    model: str | None = option(None, "model folder or name (default: the embedded model)", metavar="MODEL")
    to: str = option(
        "sentence-transformers",
        "format: sentence-transformers; onnx or openvino: one graph with both parts; or compact: a model folder of "
        "this toolkit with weights in 8 bits",
        choices=("sentence-transformers", "onnx", "openvino", "compact"),
    )
    part: str = option(
        "cls", "dense vectors (cls) or sparse vectors (ot)", choices=("cls", "ot"), only_with="to=sentence-transformers"
    )
    keep: tuple[str, ...] = option(
        (),
        "parts of the names of matrices that stay in float16, for example layer.5.attention.self.value",
        metavar="NAME",
        only_with="to=compact",
    )
    int8: bool = option(
        False, "also write the graph with weights in 8 bits, and print what that loses", only_with="to=onnx"
    )
    overwrite: bool = option(False, "replace an existing export")
