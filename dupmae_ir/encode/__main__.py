"""``python -m dupmae_ir.encode``: see ``--help``."""

from __future__ import annotations

from dupmae_ir.command import Command
from dupmae_ir.encode.config import EncodeConfig, EncodeResult
from dupmae_ir.io.sources import file_report


def summarize(config: EncodeConfig, result: EncodeResult) -> str:
    """Counts, scale and rate in one sentence."""
    unit = "passages" if "sources" in result else "documents"
    text = f"{config.index}: {result['documents']:,} {unit}"
    if result["status"] == "already complete":
        text += ", already complete from the same input and settings; nothing to do"
        return text + file_report(result.get("sources"))
    if result["empty_documents"]:
        text += f" ({result['empty_documents']:,} without text)"
    if result["scale"] is not None:
        text += f", {result['postings']:,} impacts at scale {result['scale']:g} ({result['scale_source']})"
        if result["clipped"]:
            text += f", {result['clipped']:,} clipped at 255"
    if result["documents_per_second"]:
        text += f", in {result['seconds']:,.0f} s ({result['documents_per_second']:,} {unit}/s)"
    if result["resumed"]:
        text += f", {result['resumed']:,} {unit} from an earlier run"
    return text + file_report(result.get("sources"))


main = Command(
    "encode", EncodeConfig, "dupmae_ir.encode.run:run", summarize=summarize, resumes=True
)

if __name__ == "__main__":
    main.exit()
