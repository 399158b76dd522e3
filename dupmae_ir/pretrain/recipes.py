"""The choices of each pre-training method and their presets.

The preset ``release`` follows the released code, ``paper`` the text of the paper where the two differ. A flag overrides
both. CoT-MoTE has no released code; its ``release`` preset takes what the paper leaves open from CoT-MAE's code.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from dupmae_ir.config import Config, option
from dupmae_ir.errors import UsageError

TASKS = ("mkp", "cmp", "npr", "doc2query", "gpt2")
MIN_LENGTH = 8


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """Choices of the objective and of its training that a preset makes; None = the preset's choice."""

    # Masks
    encoder_ratio: float | None = option(
        None, "fraction of the tokens masked in the encoder's input", group="masks", above=0, below=1
    )
    decoder_ratio: float | None = option(
        None, "fraction of the tokens masked in the decoders' input", group="masks", above=0, below=1
    )
    mask_replace: tuple[float, ...] | None = option(
        None,
        "fractions of the masked tokens replaced by [MASK], replaced by a random token, and left unchanged",
        group="masks",
        metavar="X",
    )
    count_special: bool | None = option(None, "include [CLS] and [SEP] in the tokens of these fractions", group="masks")
    # RetroMAE and DupMAE
    decoding: str | None = option(
        None,
        "enhanced: two streams and one mask per row (Eq. 7); basic: a masked text",
        group="RetroMAE, DupMAE",
        choices=("enhanced", "basic"),
    )
    query_stream: str | None = option(
        None,
        "H1 of enhanced decoding: position + h_cls (raw), or the same through the embeddings' LayerNorm (embedded)",
        group="RetroMAE, DupMAE",
        choices=("raw", "embedded"),
    )
    decoder_layers: int | None = option(
        None, "layers of the decoder, or of each masked decoder", group="decoders", at_least=0
    )
    # DupMAE
    bow_weight: float | None = option(None, "weight of the bag-of-words loss (Eq. 9)", group="DupMAE", at_least=0)
    decoder_weight: float | None = option(
        None, "weight of the [CLS] decoder's loss; 0 = only the bag of words", group="DupMAE", at_least=0
    )
    bow_norm: str | None = option(
        None,
        "weight of a word in the bag: 1 (sum), 1 / tokens (length), or 1 / distinct tokens (set)",
        group="DupMAE",
        choices=("sum", "length", "set"),
    )
    ot_head: str | None = option(
        None,
        "vocabulary logits from the MLM head, a separate linear map (W^O), or the word embeddings only (tied)",
        group="DupMAE",
        choices=("mlm", "linear", "tied"),
    )
    ot_exclude_masked: bool | None = option(None, "exclude masked tokens from OT pooling", group="DupMAE")
    ot_exclude_sep: bool | None = option(None, "exclude [SEP] from OT pooling", group="DupMAE")
    # MASTER
    tasks: tuple[str, ...] | None = option(None, "tasks to train, each with its decoder", group="MASTER", choices=TASKS)
    keyword: str | None = option(
        None, "weight of a keyword: 1 / frequency, or tf-idf", group="MASTER", choices=("invfreq", "tfidf")
    )
    npr_source: str | None = option(
        None,
        "neighbouring passages: the halves of a text, or a text and the next one of its document",
        group="MASTER",
        choices=("halves", "neighbours"),
    )
    complementary_ratio: float | None = option(
        None,
        "fraction masked in the encoder's input of the complementary task; the decoder's input has the rest masked",
        group="MASTER",
        above=0,
        below=1,
    )
    encoder_losses: str | None = option(
        None,
        "masked-LM loss of all texts that the encoder reads, or of the passage only",
        group="MASTER",
        choices=("all", "passage"),
    )
    shared_decoder: bool | None = option(None, "use one decoder for all tasks", group="MASTER")
    # CoT-MAE and CoT-MoTE
    context: str | None = option(
        None,
        "text decoded with the help of [CLS]: a nearby text of the document, an overlapping span of the same text, "
        "any other text of the document, or a generated query",
        group="CoT-MAE, CoT-MoTE",
        choices=("nearby", "overlap", "random", "query"),
    )
    causal_layers: int | None = option(
        None, "layers of the left-to-right decoder", group="CoT-MAE, CoT-MoTE", at_least=0
    )
    window: int | None = option(
        None,
        "tokens that the left-to-right decoder attends to, besides [CLS]; 0 = all",
        group="CoT-MAE, CoT-MoTE",
        at_least=0,
    )
    decode: str | None = option(
        None,
        "representation that CoT-MoTE's decoder starts from: h_0 (den), the vocabulary vector (spr), or each in turn",
        group="CoT-MAE, CoT-MoTE",
        choices=("den", "spr", "both"),
    )
    sparse_head: str | None = option(
        None,
        "SPR from the MLM head, or from the word embeddings only (tied, Eq. 4 as printed)",
        group="CoT-MAE, CoT-MoTE",
        choices=("mlm", "tied"),
    )
    spr_to_hidden: str | None = option(
        None,
        "map SPR to a decoder input with the (frozen) word embeddings or with a learned linear map",
        group="CoT-MAE, CoT-MoTE",
        choices=("embeddings", "linear"),
    )
    shared_norm: bool | None = option(
        None, "share the LayerNorm after the feed-forward part between the experts", group="CoT-MAE, CoT-MoTE"
    )
    experts: str | None = option(
        None,
        "separate for queries and passages: the feed-forward part (ffn), nothing (none, Siamese), or everything (all)",
        group="CoT-MAE, CoT-MoTE",
        choices=("ffn", "none", "all"),
    )
    switched: bool | None = option(None, "let each expert read the other's texts", group="CoT-MAE, CoT-MoTE")
    # Training
    truncation: str | None = option(
        None, "truncate long texts at the end, or at a random end", group="training", choices=("end", "random")
    )
    length: int | None = option(
        None, "tokens per text, [CLS] and [SEP] included", group="training", at_least=MIN_LENGTH
    )
    batch_size: int | None = option(None, "texts per step and process", group="training", above=0)
    accumulate: int | None = option(None, "batches accumulated before an update", group="training", above=0)
    learning_rate: float | None = option(
        None, "peak learning rate; linear warm-up and decay", group="training", above=0
    )
    epochs: float | None = option(None, "passes over the corpus, unless --steps is given", group="training", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = self.mask_replace
        if shares is not None and (len(shares) != 3 or min(shares) < 0 or not abs(sum(shares) - 1) <= 1e-6):
            given = " ".join(map(str, shares))
            raise UsageError(f"`mask_replace` must be three fractions that add up to 1, got {given}")
        if self.tasks is not None and len(set(self.tasks)) < len(self.tasks):
            raise UsageError(f"`tasks` {' '.join(self.tasks)}: names a task twice")


_MASKS = {"encoder_ratio": 0.30, "decoder_ratio": 0.50, "mask_replace": (0.8, 0.1, 0.1), "count_special": True}
_RUN = {"truncation": "end", "length": 512, "batch_size": 32, "accumulate": 1, "learning_rate": 1e-4, "epochs": 8.0}
_RETROMAE: dict[str, Any] = {**_MASKS, "decoding": "enhanced", "query_stream": "raw", "decoder_layers": 1, **_RUN}
_DUPMAE: dict[str, Any] = {
    **_RETROMAE,
    "query_stream": "embedded",
    "bow_weight": 0.1,
    "decoder_weight": 1.0,
    "bow_norm": "length",
    "ot_head": "mlm",
    "ot_exclude_masked": False,
    "ot_exclude_sep": False,
}
_MASTER: dict[str, Any] = {
    **_MASKS,
    "count_special": False,
    "decoder_layers": 2,
    "tasks": TASKS,
    "keyword": "invfreq",
    "npr_source": "halves",
    "complementary_ratio": 0.50,
    "encoder_losses": "all",
    "shared_decoder": False,
    **_RUN,
    "truncation": "random",
    "length": 128,
    "batch_size": 128,
    "accumulate": 2,
    "learning_rate": 3e-4,
    "epochs": 40.0,
}
_COT_MAE: dict[str, Any] = {
    **_MASKS,
    "count_special": False,
    "decoder_ratio": 0.45,
    "context": "nearby",
    "decoder_layers": 2,
    "causal_layers": 0,
    "window": 0,
    **_RUN,
    "length": 128,
    "batch_size": 128,
}
_COT_MOTE: dict[str, Any] = {
    **_MASKS,
    "count_special": False,
    "causal_layers": 1,
    "window": 0,
    "decode": "both",
    "sparse_head": "mlm",
    "spr_to_hidden": "embeddings",
    "shared_norm": False,
    "experts": "ffn",
    "switched": False,
    **_RUN,
    "length": 144,
    "batch_size": 256,
    "learning_rate": 3e-4,
}
del _COT_MOTE["decoder_ratio"]

_MLM: dict[str, Any] = {**{k: v for k, v in _MASKS.items() if k != "decoder_ratio"}, **_RUN}

_PAPER_MASKS = {"mask_replace": (1.0, 0.0, 0.0)}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "retromae": {"release": _RETROMAE, "paper": {**_RETROMAE, **_PAPER_MASKS}},
    "dupmae": {
        "release": _DUPMAE,
        "paper": {
            **_DUPMAE,
            **_PAPER_MASKS,
            "query_stream": "raw",
            "bow_weight": 1.0,
            "bow_norm": "sum",
            "ot_head": "linear",
            "ot_exclude_masked": True,
            "ot_exclude_sep": True,
        },
    },
    "master": {
        "release": _MASTER,
        "paper": {
            **_MASTER,
            **_PAPER_MASKS,
            "keyword": "tfidf",
            "npr_source": "neighbours",
            "complementary_ratio": 0.30,
            "encoder_losses": "passage",
        },
    },
    "cot-mae": {"release": _COT_MAE, "paper": {**_COT_MAE, **_PAPER_MASKS}},
    "cot-mote": {"release": _COT_MOTE, "paper": {**_COT_MOTE, **_PAPER_MASKS, "sparse_head": "tied"}},
    # A baseline without a paper: RetroMAE's encoder loss without its decoder.
    "mlm": {"release": _MLM, "paper": {**_MLM, **_PAPER_MASKS}},
}
"""Method -> preset -> all choices that the method has."""


def resolve(method: str, preset: str, given: Recipe) -> Recipe:
    """The preset's choices, overridden by those of ``given``. Choices that the method does not have are None.

    Raises :class:`UsageError` for a choice that the method does not have, and for choices that exclude each other.
    """
    chosen = dict(PRESETS[method][preset])
    for f in fields(Recipe):
        value = getattr(given, f.name)
        if value is None:
            continue
        if f.name not in chosen:
            owners = " or ".join(m for m in PRESETS if f.name in PRESETS[m]["release"])
            raise UsageError(f"`{f.name}` applies only with `method` {owners}, not {method}")
        chosen[f.name] = value
    recipe = Recipe(**chosen)
    if recipe.decoding == "enhanced" and recipe.decoder_layers != 1:
        raise UsageError("`decoder_layers` must be 1 with `decoding` enhanced; use `decoding` basic for more layers")
    if recipe.decoder_layers == 0 and not recipe.causal_layers:
        raise UsageError("`decoder_layers` 0 leaves no decoder; use 1 or more")
    return recipe


def choices(recipe: Recipe) -> dict[str, Any]:
    """The choices that a resolved recipe makes, by name, as plain JSON-able values."""
    values = {f.name: getattr(recipe, f.name) for f in fields(Recipe)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}
