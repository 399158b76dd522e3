"""Options of ``dupmae-ir finetune.score``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import ComputeOptions, OutputOptions, option


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(ComputeOptions, OutputOptions):
    """Options of ``dupmae-ir finetune.score``."""

    mined: str = option(help="mined negatives (dupmae-ir finetune.mine)", group="input", metavar="FILE")
    model: str = option(help="folder of the cross-encoder", group="input", metavar="FOLDER")
    collection: str | None = option(
        None, "collection the negatives were mined from, if it has moved since", group="input", metavar="PATH"
    )
    output: str = option(
        help="JSON lines to write; OUTPUT.meta.json records the settings", group="output", metavar="FILE"
    )
    length: int = option(192, "word pieces kept of query and passage together", group="model", above=0)
    title_separator: str = option(
        "space",
        "between title and text: a space, the model's separator token, or a colon",
        group="model",
        choices=("space", "sep", "colon"),
    )
    batch_tokens: int = option(8192, "word pieces per forward pass, padding included", group="compute", above=0)
