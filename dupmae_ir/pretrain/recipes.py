"""The choices of each pre-training method and their presets.

The preset ``release`` follows the released code, ``paper`` the text of the paper where the two differ (presets.toml). A
flag overrides both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from dupmae_ir.config import Config, option, read_toml
from dupmae_ir.errors import UsageError

TASKS = ("mkp", "cmp", "npr", "doc2query", "gpt2")
MIN_LENGTH = 8

# Without a default: None leaves the choice to the preset.
_masks = partial(option, None, group="masks")
_retromae = partial(option, None, group="RetroMAE, DupMAE")
_decoders = partial(option, None, group="decoders")
_dupmae = partial(option, None, group="DupMAE")
_master = partial(option, None, group="MASTER")
_cot = partial(option, None, group="CoT-MAE, CoT-MoTE")
_training = partial(option, None, group="training")


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """Choices of the objective and of its training that a preset makes; None = the preset's choice."""

    # Masks
    encoder_ratio: float | None = _masks(
        "fraction of the tokens masked in the encoder's input", above=0, below=1
    )
    decoder_ratio: float | None = _masks(
        "fraction of the tokens masked in the decoders' input", above=0, below=1
    )
    mask_replace: tuple[float, ...] | None = _masks(
        "fractions of the masked tokens replaced by [MASK], replaced by a random token, and left unchanged",
        metavar="X",
    )
    count_special: bool | None = _masks("include [CLS] and [SEP] in the tokens of these fractions")
    # RetroMAE and DupMAE
    decoding: str | None = _retromae(
        "enhanced: two streams and one mask per row (Eq. 7); basic: a masked text",
        choices=("enhanced", "basic"),
    )
    query_stream: str | None = _retromae(
        "H1 of enhanced decoding: position + h_cls (raw), or the same through the embeddings' LayerNorm (embedded)",
        choices=("raw", "embedded"),
    )
    decoder_layers: int | None = _decoders(
        "layers of the decoder, or of each masked decoder", at_least=0
    )
    # DupMAE
    bow_weight: float | None = _dupmae("weight of the bag-of-words loss (Eq. 9)", at_least=0)
    decoder_weight: float | None = _dupmae(
        "weight of the [CLS] decoder's loss; 0 = only the bag of words", at_least=0
    )
    bow_norm: str | None = _dupmae(
        "weight of a word in the bag: 1 (sum), 1 / tokens (length), or 1 / distinct tokens (set)",
        choices=("sum", "length", "set"),
    )
    ot_head: str | None = _dupmae(
        "vocabulary logits from the MLM head, a separate linear map (W^O), or the word embeddings only (tied)",
        choices=("mlm", "linear", "tied"),
    )
    ot_exclude_masked: bool | None = _dupmae("exclude masked tokens from OT pooling")
    ot_exclude_sep: bool | None = _dupmae("exclude [SEP] from OT pooling")
    # MASTER
    tasks: tuple[str, ...] | None = _master("tasks to train, each with its decoder", choices=TASKS)
    keyword: str | None = _master(
        "weight of a keyword: 1 / frequency, or tf-idf", choices=("invfreq", "tfidf")
    )
    npr_source: str | None = _master(
        "neighbouring passages: the halves of a text, or a text and the next one of its document",
        choices=("halves", "neighbours"),
    )
    complementary_ratio: float | None = _master(
        "fraction masked in the encoder's input of the complementary task; the decoder's input has the rest masked",
        above=0,
        below=1,
    )
    encoder_losses: str | None = _master(
        "masked-LM loss of all texts that the encoder reads, or of the passage only",
        choices=("all", "passage"),
    )
    shared_decoder: bool | None = _master("use one decoder for all tasks")
    # CoT-MAE and CoT-MoTE
    context: str | None = _cot(
        "text decoded with the help of [CLS]: the text before or after it in the document (nearby), a span that "
        "overlaps with it, any other text of the document (random), each of these in turn at random (mixed), or a "
        "generated query",
        choices=("nearby", "overlap", "random", "mixed", "query"),
    )
    causal_layers: int | None = _cot("layers of the left-to-right decoder", at_least=0)
    window: int | None = _cot(
        "tokens that the left-to-right decoder attends to, besides [CLS]; 0 = all", at_least=0
    )
    decode: str | None = _cot(
        "representation that CoT-MoTE's decoder starts from: h_0 (den), the vocabulary vector (spr), or each in turn",
        choices=("den", "spr", "both"),
    )
    sparse_head: str | None = _cot(
        "SPR from the MLM head, or from the word embeddings only (tied, Eq. 4 as printed)",
        choices=("mlm", "tied"),
    )
    spr_to_hidden: str | None = _cot(
        "map SPR to a decoder input with the (frozen) word embeddings or with a learned linear map",
        choices=("embeddings", "linear"),
    )
    shared_norm: bool | None = _cot(
        "share the LayerNorm after the feed-forward part between the experts"
    )
    experts: str | None = _cot(
        "separate for queries and passages: the feed-forward part (ffn), nothing (none, Siamese), or everything (all)",
        choices=("ffn", "none", "all"),
    )
    switched: bool | None = _cot("let each expert read the other's texts")
    # Training
    truncation: str | None = _training(
        "truncate long texts at the end, or on both sides of a window at a random place",
        choices=("end", "window"),
    )
    length: int | None = _training("tokens per text, [CLS] and [SEP] included", at_least=MIN_LENGTH)
    batch_size: int | None = _training("texts per step and process", above=0)
    accumulate: int | None = _training("batches accumulated before an update", above=0)
    learning_rate: float | None = _training("peak learning rate; linear warm-up and decay", above=0)
    epochs: float | None = _training("passes over the corpus, unless --steps is given", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_replace is not None and not _is_distribution(self.mask_replace):
            raise UsageError(
                "`mask_replace` must be three fractions that add up to 1, got "
                + " ".join(map(str, self.mask_replace))
            )
        if self.tasks is not None and len(set(self.tasks)) < len(self.tasks):
            raise UsageError(f"`tasks` {' '.join(self.tasks)}: names a task twice")


def _is_distribution(shares: tuple[float, ...]) -> bool:
    """Whether ``shares`` are three numbers of 0 or more that add up to 1."""
    # Written so that NaN fails too.
    return len(shares) == 3 and min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-6


def _read_presets(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    presets = {}
    for method, tables in read_toml(path).items():
        release = _with_tuples(tables["release"])
        # The table of the paper has only the choices in which it differs.
        paper = release | _with_tuples(tables["paper"])
        presets[method] = {"release": release, "paper": paper}
    return presets


def _with_tuples(table: dict[str, Any]) -> dict[str, Any]:
    """The values of a table, with lists as tuples, as the fields of a recipe are."""
    values = {}
    for name, value in table.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    return values


PRESETS = _read_presets(Path(__file__).with_name("presets.toml"))
"""Method -> preset -> all choices that the method has."""


def resolve(method: str, preset: str, overrides: Recipe) -> Recipe:
    """The preset's choices, replaced by ``overrides`` that are not None. Choices that the method lacks are None.

    Raises :class:`UsageError` for a choice that the method does not have, and for choices that exclude each other.
    """
    values = dict(PRESETS[method][preset])
    for name, value in _values(overrides).items():
        if name not in values:
            methods = [other for other in PRESETS if name in PRESETS[other]["release"]]
            raise UsageError(
                f"`{name}` applies only with `method` {' or '.join(methods)}, not {method}"
            )
        values[name] = value
    recipe = Recipe(**values)
    if recipe.decoding == "enhanced" and recipe.decoder_layers != 1:
        raise UsageError(
            "`decoder_layers` must be 1 with `decoding` enhanced; use `decoding` basic for more layers"
        )
    if recipe.decoder_layers == 0 and not recipe.causal_layers:
        raise UsageError("`decoder_layers` 0 leaves no decoder; use 1 or more")
    return recipe


def choices(recipe: Recipe) -> dict[str, Any]:
    """The choices that a resolved recipe makes, by name, as values for JSON."""
    values = _values(recipe)
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = list(value)
    return values


def _values(recipe: Recipe) -> dict[str, Any]:
    """The fields of :class:`Recipe` that are not None; ``recipe`` may be a subclass with more fields."""
    values = {}
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if value is not None:
            values[field.name] = value
    return values
