"""``python -m dupmae_ir.export``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.export.config import ExportConfig


def summarize(config: ExportConfig, result: dict[str, Any]) -> str:
    """``exported/dense: SentenceTransformer of Transformer, Pooling, Dense``, or sizes and differences."""
    if config.to == "compact":
        return f"{config.output}: {result['bytes'] / 1e6:.1f} MB, {result['matrices']} matrices in 8 bits"
    if config.to in ("onnx", "openvino"):
        graphs = (
            f"{name} {size / 1e6:.1f} MB ({_differences(result['differences'][name])})"
            for name, size in result["bytes"].items()
        )
        return f"{config.output}: {' and '.join(result['parts'])} in {', '.join(graphs)}"
    routed = "for each side " if result["routed"] else ""
    return f"{config.output}: {result['kind']} of {routed}{', '.join(result['modules'])}"


def _differences(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in found.items())


main = Command("export", ExportConfig, "dupmae_ir.export.run:run", summarize=summarize)

if __name__ == "__main__":
    main.exit()
