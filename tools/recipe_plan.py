"""The plan of a model's training: what each step of its recipe reads, how much, and at what cost.

The plan is computed from the recipe without downloading anything, so that a person can compare it with the paper before
weeks of training. Sizes come from the catalogue and from ``queries`` in models.toml; see :data:`ASSUMED` for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dupmae_ir import collections
from dupmae_ir.config import Config, applies, read_toml
from dupmae_ir.encode.passages import PassagesConfig
from dupmae_ir.eval.regressions.cases import DOWNLOADS, Model
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.convert import ConvertConfig
from dupmae_ir.finetune.cross_encoder import CrossEncoderConfig
from dupmae_ir.finetune.mine import MineConfig
from dupmae_ir.finetune.score import ScoreConfig
from dupmae_ir.finetune.stages import Step, plan
from dupmae_ir.pretrain.augment import AugmentConfig
from dupmae_ir.pretrain.config import PretrainConfig

OPERATIONAL = (
    *(
        "output",
        "quiet",
        "json",
        "threads",
        "processes",
        "device",
        "workers",
        "cache",
        "overwrite",
        "restart",
    ),
    *("checkpointing", "report_to", "push_to_hub"),
)
"""Settings that a recipe does not state: where a command runs and what it prints or sends, which change no result."""

RATE = 100e12
"""FLOP/s of one GPU in matrix products: a third of an A100's peak in bfloat16. Generation is taken at a tenth of it."""

ASSUMED: dict[str, dict[str, float]] = {
    "parameters": {
        "doc2query-t5": 223e6,
        "gpt2": 124e6,
        "deberta-v3-base": 184e6,
    },  # of others: BERT-base's
    "words": {
        "msmarco-doc": 1100,
        "dpr-nq": 100,
    },  # mean words of a document, for encode.passages and blocks
    "encodings": {
        "master": 4.0,
        "cot-mote": 2.2,
    },  # forward passes per text, decoders included; of others: 1.2
}
BERT = 110e6


@dataclass(frozen=True)
class PlannedStep:
    """One step of a plan. None = unknown, or not applicable to its command."""

    name: str
    command: str
    config: Config
    data: str  #: what it reads
    texts: float | None = None  #: texts, queries or pairs it goes through once
    updates: int | None = None
    effective_batch: int | None = None
    batch: str = ""  #: how the effective batch is composed
    lengths: str = ""
    negatives: str = ""
    tokens: float | None = None
    gpu_hours: float | None = None

    def setting(self, name: str) -> Any:
        """The value of a setting, or of ``updates`` and ``effective_batch``."""
        return (
            getattr(self, name)
            if name in ("updates", "effective_batch")
            else getattr(self.config, name)
        )


@dataclass
class _Sizes:
    """Numbers of texts and origins of step outputs, by name."""

    downloads: Mapping[str, Mapping[str, Any]]
    catalogue: Path | None
    texts: dict[str, float] = field(default_factory=dict)
    judgements: dict[str, float] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    corpora: dict[str, str] = field(default_factory=dict)

    def documents(self, reference: str) -> float:
        """Documents of a ``collection:`` reference, or texts of a step's output."""
        kind, _, rest = reference.partition(":")
        if kind == "collection":
            return float(collections.find(rest.partition("/")[0], self.catalogue).documents or 0)
        return self.texts.get(Path(reference).stem, 0)

    def queries(self, reference: str) -> float:
        """Training queries of a ``file:`` reference, or of a step's output."""
        kind, _, rest = reference.partition(":")
        if kind == "file":
            return float(self.downloads.get(rest.partition("/")[0], {}).get("queries", 0))
        return self.texts.get(Path(reference).stem, 0)

    def judged(self, reference: str) -> float:
        """Judgements of a ``file:`` reference, or of a step's output; as many as queries if they are not known."""
        kind, _, rest = reference.partition(":")
        if kind == "file":
            known = self.downloads.get(rest.partition("/")[0], {}).get("judgements", 0)
            return float(known) or self.queries(reference)
        return self.judgements.get(Path(reference).stem, 0) or self.queries(reference)

    def examples(self, config: FinetuneConfig | CrossEncoderConfig, source: str) -> float:
        """Examples of an epoch over a step's output."""
        of_all = self.judgements if config.examples == "judgement" else self.texts
        return min(of_all.get(source, 0), config.limit or float("inf"))


def plan_training(
    model: Model,
    recipe: Path,
    inputs: Mapping[str, Any],
    models_toml: Mapping[str, Any],
    catalogue: Path | None = None,
) -> list[PlannedStep]:
    """The steps that train ``model``, with references such as ``collection:NAME/corpus`` left as they are."""
    steps, _ = plan(recipe, "", {**inputs, **model.set}, last=model.step)
    sizes = _Sizes(models_toml.get(DOWNLOADS, {}), catalogue)
    return [_PLANNERS[type(step.config)](step, step.config, sizes) for step in steps]


def unstated(recipe: Path) -> list[str]:
    """``STEP: SETTING`` for each setting that a recipe leaves to a command's default without saying so.

    Exempt are :data:`OPERATIONAL` settings, those without effect beside the others, and those that a pre-training
    method does not have.
    """
    data = read_toml(recipe)
    tables = {t["name"]: t for t in data.get("step", [])}
    found = []
    for step in plan(recipe, "", {})[0]:
        common = data.get("common", {}).get(step.command, {})
        own = tables[step.name]
        said = {*common, *own, *common.get("unset", ()), *own.get("unset", ())}
        known = _choices(step.config)
        found += [
            f"{step.name}: {f.name}"
            for f in fields(step.config)
            if f.name not in said
            and f.name not in OPERATIONAL
            and f.name not in known
            and applies(step.config, f.name)
        ]
    return found


def _choices(config: Config) -> set[str]:
    """Pre-training choices that the method does not have, and epochs where updates are given."""
    without: set[str] = set()
    if isinstance(config, PretrainConfig):
        without = {f.name for f in fields(config.recipe) if getattr(config.recipe, f.name) is None}
    if getattr(config, "steps", 0):
        without.add("epochs")
    return without


@dataclass(frozen=True)
class SettingComparison:
    """A setting of a step beside the paper's."""

    where: str  #: model and step
    setting: str
    ours: Any
    papers: Any
    source: str  #: section of the paper, or file of its released code
    because: str = ""  #: why it deviates, where that is known

    @property
    def equal(self) -> bool:
        """Whether both values are the same."""
        return same(self.ours, self.papers)

    def __str__(self) -> str:
        reason = f" ({self.because})" if self.because else ""
        ours = _short(self.ours)
        papers = _short(self.papers)
        return f"{self.where}: {self.setting} is {ours}, {papers} in {self.source}{reason}"


def in_words(step: PlannedStep, compared: Sequence[SettingComparison] = ()) -> list[str]:
    """The step as lines for a person, with the settings that were compared with the paper."""
    lines = [f"{step.name} ({step.command}): {step.data}"]
    if step.updates:
        lines.append(
            f"  {step.updates:,} updates, {step.batch} = {step.effective_batch:,} per update"
        )
    if step.lengths:
        lines.append(f"  lengths: {step.lengths}")
    if step.negatives:
        lines.append(f"  negatives: {step.negatives}")
    if step.tokens:
        cost = (
            f", about {step.gpu_hours:,.1f} GPU-hours at {RATE / 1e12:g} TFLOP/s"
            if step.gpu_hours
            else ""
        )
        lines.append(f"  tokens: at most {step.tokens:.3g}{cost}")
    equal: dict[str, list[str]] = {}
    for one in compared:
        if one.equal:
            equal.setdefault(one.source, []).append(f"{one.setting} {_short(one.ours)}")
        else:
            mark = f"known deviation, {one.because}" if one.because else "MISMATCH"
            lines.append(
                f"  {one.setting} {_short(one.ours)}, but {_short(one.papers)} in {one.source}: {mark}"
            )
    return [*lines, *(f"  as in {source}: {', '.join(names)}" for source, names in equal.items())]


def same(ours: Any, papers: Any) -> bool:
    """Equality of a setting and a TOML value: lists are tuples, numbers of updates may be rounded to 0.5 %."""
    if isinstance(ours, list | tuple) or isinstance(papers, list):
        return list(ours or ()) == list(papers)
    if (
        isinstance(ours, int | float)
        and isinstance(papers, int | float)
        and not isinstance(ours, bool)
    ):
        return abs(ours - papers) <= 0.005 * abs(papers)
    return bool(ours == papers)


def _short(value: Any) -> str:
    return " + ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _hours(flops: float) -> float:
    return flops / RATE / 3600


def _parameters(model: str | None) -> float:
    return ASSUMED["parameters"].get(str(model).partition(":")[2], BERT)


def _updates(config: Any, texts: float, effective: int) -> int:
    return config.steps or max(1, round(config.epochs * texts / effective))


def _effective(config: Any) -> tuple[int, str]:
    return (
        config.batch_size * config.accumulate,
        f"{config.batch_size} x {config.accumulate} accumulated",
    )


def _pretrain(step: Step, config: PretrainConfig, sizes: _Sizes) -> PlannedStep:
    recipe = config.recipe
    texts = sum(map(sizes.documents, config.corpus))
    if config.unit == "blocks":  # 1.35 word pieces a word
        names = [reference.partition(":")[2].partition("/")[0] for reference in config.corpus]
        shares = [ASSUMED["words"].get(name, 0) * 1.35 / int(recipe.length or 1) for name in names]
        texts = sum(map(lambda c, s: sizes.documents(c) * (s or 1), config.corpus, shares))
    merged = _Merged(config, recipe)
    effective, batch = _effective(merged)
    updates = _updates(merged, texts, effective)
    tokens = float(updates) * effective * int(recipe.length or 0)
    data = f"{config.method}, preset {config.preset}, on {' and '.join(config.corpus)}, {texts:,.0f} texts"
    flops = 6 * BERT * tokens * ASSUMED["encodings"].get(config.method, 1.2)
    start = f" from {config.model or config.init_from}"
    return PlannedStep(
        step.name, step.command, config, data + start, texts, updates, effective, batch,
        f"{recipe.length} tokens a text", "", tokens, _hours(flops),
    )  # fmt: skip


class _Merged:
    """A pre-training configuration whose choices are those in effect."""

    def __init__(self, config: PretrainConfig, recipe: Any) -> None:
        self.steps = config.steps
        self.batch_size = recipe.batch_size or 1
        self.accumulate = recipe.accumulate or 1
        self.epochs = recipe.epochs


def _passages(step: Step, config: PassagesConfig, sizes: _Sizes) -> PlannedStep:
    name = config.corpus.partition(":")[2].partition("/")[0]
    spans = sizes.documents(config.corpus) * max(
        1.0, ASSUMED["words"].get(name, config.words) / config.stride
    )
    sizes.texts[step.name] = spans
    return PlannedStep(
        step.name, step.command, config, f"{config.corpus} into about {spans:,.0f} spans", spans
    )


def _augment(step: Step, config: AugmentConfig, sizes: _Sizes) -> PlannedStep:
    texts = sizes.documents(config.corpus)
    sizes.texts[step.name] = texts
    tokens = texts * config.copies * config.max_new_tokens
    data = f"{config.copies} {config.task} for each of {texts:,.0f} texts of {config.corpus}, by {config.model}"
    hours = _hours(10 * 2 * _parameters(config.model) * tokens)
    return PlannedStep(step.name, step.command, config, data, texts, tokens=tokens, gpu_hours=hours)


def _convert(step: Step, config: ConvertConfig, sizes: _Sizes) -> PlannedStep:
    queries = sizes.queries(config.input)
    sizes.texts[step.name], sizes.origin[step.name] = queries, f"{config.input}'s own"
    sizes.judgements[step.name] = sizes.judged(config.input)
    return PlannedStep(
        step.name,
        step.command,
        config,
        f"{queries:,.0f} training queries of {config.input}",
        queries,
    )


def _mine(step: Step, config: MineConfig, sizes: _Sizes) -> PlannedStep:
    documents = sizes.documents(str(config.collection))
    queries = sum(map(sizes.queries, config.pairs))
    by = "BM25" if config.by == "bm25" else f"{config.model} ({config.parts})"
    sizes.texts[step.name], sizes.origin[step.name] = queries, f"the top {config.depth} by {by}"
    sizes.judgements[step.name] = sum(map(sizes.judged, config.pairs))
    data = f"top {config.depth} of {config.collection} for {queries:,.0f} queries, by {by}"
    if config.by == "bm25":
        return PlannedStep(step.name, step.command, config, data, queries)
    tokens = documents * (config.document_length or 0)
    lengths = f"{config.query_length} and {config.document_length}, titles joined by {config.title_separator}"
    return PlannedStep(
        step.name, step.command, config, data, queries,
        lengths=lengths, tokens=tokens, gpu_hours=_hours(2 * BERT * tokens),
    )  # fmt: skip


def _finetune(step: Step, config: FinetuneConfig, sizes: _Sizes) -> PlannedStep:
    source = Path(config.mined or config.pairs[0]).stem
    queries = sizes.examples(config, source)
    effective, batch = _effective(config)
    updates = _updates(config, queries, effective)
    group = config.query_length + (1 + config.negatives) * config.document_length
    tokens = float(updates) * effective * group
    # --pairs: the pairs' own negatives; --mined: sampled from the best of a search.
    negatives = f"{config.negatives} of {sizes.origin.get(source, source)}, and the other passages of the batch"
    what = f"distilled ({config.distill}) from {config.scores}" if config.distill else "contrastive"
    return PlannedStep(
        step.name, step.command, config, f"{what}, {queries:,.0f} examples, from {config.model}", queries,
        updates, effective, batch,
        f"{config.query_length} and {config.document_length}, titles joined by {config.title_separator}",
        negatives, tokens, _hours(6 * BERT * tokens * (4 / 3 if config.grad_cache else 1)),
    )  # fmt: skip


def _cross_encoder(step: Step, config: CrossEncoderConfig, sizes: _Sizes) -> PlannedStep:
    source = Path(config.mined).stem
    effective, batch = _effective(config)
    updates = _updates(config, sizes.examples(config, source), effective)
    tokens = float(updates) * effective * config.group_size * config.length
    return PlannedStep(
        step.name, step.command, config, f"cross-encoder from {config.model}", sizes.texts.get(source), updates,
        effective, batch, f"{config.length}, titles joined by {config.title_separator}",
        f"{config.group_size - 1} of {sizes.origin.get(source, source)}", tokens,
        _hours(6 * _parameters(config.model) * tokens),
    )  # fmt: skip


def _score(step: Step, config: ScoreConfig, sizes: _Sizes) -> PlannedStep:
    source = Path(config.mined).stem
    pairs = sizes.texts.get(source, 0) * 200
    tokens = pairs * config.length
    return PlannedStep(
        step.name, step.command, config, f"{config.model} scores about {pairs:,.0f} pairs of {source}", pairs,
        lengths=f"{config.length}, titles joined by {config.title_separator}",
        tokens=tokens, gpu_hours=_hours(2 * BERT * tokens),
    )  # fmt: skip


_PLANNERS: dict[type, Any] = {
    PretrainConfig: _pretrain,
    PassagesConfig: _passages,
    AugmentConfig: _augment,
    ConvertConfig: _convert,
    MineConfig: _mine,
    FinetuneConfig: _finetune,
    CrossEncoderConfig: _cross_encoder,
    ScoreConfig: _score,
}
