"""What a method can be told, and what its presets say.

``release`` does what the released code does, ``paper`` what the text says, where the two differ; a flag wins over
both. CoT-MoTE has no released code: its ``release`` preset takes what the text leaves open from CoT-MAE's code.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from dupmae_ir.config import option
from dupmae_ir.errors import UsageError

TASKS = ("mkp", "cmp", "npr", "doc2query", "gpt2")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Choices of the objective and of the run that a preset makes; None = the preset's."""

    # Masks
    encoder_ratio: float | None = option(None, "share of the tokens hidden from the encoder", group="masks")
    decoder_ratio: float | None = option(None, "share hidden from the decoders", group="masks")
    mask_replace: tuple[float, ...] | None = option(
        None, "shares of [MASK], random and unchanged among hidden tokens", group="masks", metavar="X"
    )
    count_special: bool | None = option(None, "count [CLS] and [SEP] when the share is taken", group="masks")
    # RetroMAE and DupMAE
    decoding: str | None = option(
        None,
        "enhanced: two streams and a mask per row (Eq. 7); basic: masked text",
        group="RetroMAE, DupMAE",
        choices=("enhanced", "basic"),
    )
    query_stream: str | None = option(
        None,
        "H1 of enhanced decoding: position + h_cls, or through the embeddings' LayerNorm too",
        group="RetroMAE, DupMAE",
        choices=("raw", "embedded"),
    )
    decoder_layers: int | None = option(None, "layers of a (mask) decoder", group="decoders")
    # DupMAE
    bow_weight: float | None = option(None, "weight of the bag-of-words loss (Eq. 9)", group="DupMAE")
    decoder_weight: float | None = option(
        None, "weight of the [CLS] decoder's loss; 0 leaves the bag of words alone", group="DupMAE"
    )
    bow_norm: str | None = option(
        None,
        "a word's weight in it: 1, 1 / tokens, or 1 / distinct tokens",
        group="DupMAE",
        choices=("sum", "length", "set"),
    )
    ot_head: str | None = option(
        None,
        "vocabulary logits from: the MLM head, a linear map of its own (W^O), or the word embeddings alone",
        group="DupMAE",
        choices=("mlm", "linear", "tied"),
    )
    ot_exclude_masked: bool | None = option(None, "hidden tokens do not speak in the OT part", group="DupMAE")
    ot_exclude_sep: bool | None = option(None, "[SEP] does not speak in the OT part", group="DupMAE")
    # MASTER
    tasks: tuple[str, ...] | None = option(None, f"decoders that are on, of {' '.join(TASKS)}", group="MASTER")
    keyword: str | None = option(
        None, "keyword weights: 1 / frequency, or tf-idf", group="MASTER", choices=("invfreq", "tfidf")
    )
    npr_source: str | None = option(
        None,
        "neighbouring passages are halves of the text, or the next text of its document",
        group="MASTER",
        choices=("halves", "neighbours"),
    )
    complementary_ratio: float | None = option(
        None, "share hidden from the encoder in the complementary task; the decoder gets the rest", group="MASTER"
    )
    encoder_losses: str | None = option(
        None,
        "masked-LM loss of all texts the encoder reads, or of the passage alone",
        group="MASTER",
        choices=("all", "passage"),
    )
    shared_decoder: bool | None = option(None, "one decoder for all tasks", group="MASTER")
    # CoT-MAE and CoT-MoTE
    context: str | None = option(
        None,
        "what [CLS] must help decode: a nearby text of the document, an overlapping piece of the same text, "
        "any other text of the document, or a generated query",
        group="CoT-MAE, CoT-MoTE",
        choices=("nearby", "overlap", "random", "query"),
    )
    causal_layers: int | None = option(None, "layers of the left-to-right decoder", group="CoT-MAE, CoT-MoTE")
    window: int | None = option(
        None, "tokens that the left-to-right decoder looks back, besides [CLS]; 0 = all", group="CoT-MAE, CoT-MoTE"
    )
    decode: str | None = option(
        None,
        "representation that leads CoT-MoTE's decoder: h_0, the vocabulary vector, or each in turn",
        group="CoT-MAE, CoT-MoTE",
        choices=("den", "spr", "both"),
    )
    sparse_head: str | None = option(
        None,
        "SPR through the MLM head, or by the word embeddings alone (Eq. 4 as printed)",
        group="CoT-MAE, CoT-MoTE",
        choices=("mlm", "tied"),
    )
    spr_to_hidden: str | None = option(
        None,
        "SPR becomes a decoder input by the (frozen) word embeddings or by a learned map",
        group="CoT-MAE, CoT-MoTE",
        choices=("embeddings", "linear"),
    )
    shared_norm: bool | None = option(None, "both experts use one second LayerNorm", group="CoT-MAE, CoT-MoTE")
    experts: str | None = option(
        None,
        "what queries and passages have of their own: the feed-forward part, nothing (Siamese), everything",
        group="CoT-MAE, CoT-MoTE",
        choices=("ffn", "none", "all"),
    )
    switched: bool | None = option(None, "each expert reads the other's texts", group="CoT-MAE, CoT-MoTE")
    # The run
    truncation: str | None = option(
        None, "cut long texts at the end, or at a random end", group="training", choices=("end", "random")
    )
    length: int | None = option(None, "tokens per text, [CLS] and [SEP] included", group="training")
    batch_size: int | None = option(None, "texts per step and process", group="training")
    accumulate: int | None = option(None, "batches added up before an update", group="training")
    learning_rate: float | None = option(None, "peak; linear warm-up and decay", group="training")
    epochs: float | None = option(None, "passes over the corpus, unless --steps is given", group="training")


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

_PRINTED = {"mask_replace": (1.0, 0.0, 0.0)}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "retromae": {"release": _RETROMAE, "paper": {**_RETROMAE, **_PRINTED}},
    "dupmae": {
        "release": _DUPMAE,
        "paper": {
            **_DUPMAE,
            **_PRINTED,
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
            **_PRINTED,
            "keyword": "tfidf",
            "npr_source": "neighbours",
            "complementary_ratio": 0.30,
            "encoder_losses": "passage",
        },
    },
    "cot-mae": {"release": _COT_MAE, "paper": {**_COT_MAE, **_PRINTED}},
    "cot-mote": {"release": _COT_MOTE, "paper": {**_COT_MOTE, **_PRINTED, "sparse_head": "tied"}},
    # Nobody's paper: RetroMAE's encoder without its decoder, to tell what the decoder adds.
    "mlm": {"release": _MLM, "paper": {**_MLM, **_PRINTED}},
}
"""Method -> preset -> every choice that the method has."""


def resolve(method: str, preset: str, told: Recipe) -> Recipe:
    """The preset's choices with those of ``told`` laid over them; what the method has no use for stays None.

    Raises :class:`UsageError` for a choice that the method does not have or a value that cannot be.
    """
    chosen = dict(PRESETS[method][preset])
    for f in fields(Recipe):
        value = getattr(told, f.name)
        if value is None:
            continue
        if f.name not in chosen:
            owners = ", ".join(m for m in PRESETS if f.name in PRESETS[m]["release"])
            raise UsageError(f"{_flag(f.name)} says nothing to {method}; it belongs to {owners}")
        chosen[f.name] = value
    recipe = Recipe(**chosen)
    _check(recipe)
    return recipe


def made(recipe: Recipe) -> dict[str, Any]:
    """The choices that a resolved recipe makes, by name: what is printed and stored."""
    values = {f.name: getattr(recipe, f.name) for f in fields(Recipe)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check(recipe: Recipe) -> None:
    for name in ("encoder_ratio", "decoder_ratio", "complementary_ratio"):
        value = getattr(recipe, name)
        if value is not None and not 0 < value < 1:
            raise UsageError(f"{_flag(name)} {value:g}: wants a share above 0 and below 1, for example 0.3")
    for name in ("length", "batch_size", "accumulate", "learning_rate", "epochs", "decoder_layers"):
        value = getattr(recipe, name)
        allows_none = name == "decoder_layers" and bool(recipe.causal_layers)
        if value is not None and not (value > 0 or (value == 0 and allows_none)):
            raise UsageError(f"{_flag(name)} {value:g}: must be above 0")
    for name in ("bow_weight", "decoder_weight", "window", "causal_layers"):
        value = getattr(recipe, name)
        if value is not None and value < 0:
            raise UsageError(f"{_flag(name)} {value:g}: must be 0 or more")
    if recipe.length is not None and recipe.length < 8:
        raise UsageError(f"--length {recipe.length}: wants at least 8 tokens")
    shares = recipe.mask_replace or ()
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise UsageError(f"--mask-replace {' '.join(map(str, shares))}: wants three shares that add up to 1")
    if recipe.decoding == "enhanced" and recipe.decoder_layers != 1:
        raise UsageError("--decoder-layers: enhanced decoding has one layer; use --decoding basic for more")
    if recipe.tasks is not None:
        _check_tasks(recipe.tasks)


def _check_tasks(tasks: tuple[str, ...]) -> None:
    from dupmae_ir.registry import lookup

    for task in tasks:
        lookup("task", task, dict.fromkeys(TASKS))
    if len(set(tasks)) < len(tasks):
        raise UsageError(f"--tasks {' '.join(tasks)}: names a task twice")
