"""Generates texts with a Hugging Face model: queries with an encoder-decoder, continuations with a causal model.

The generated texts depend only on the seed, the text and the model. Each token is sampled with a uniform random number
that is a function of seed, text and position: it is the token where the cumulative probability passes that number.
Batch, order, resumption and device therefore change nothing except through rounding.

:func:`run` copies a corpus to JSON lines with one more field: ``queries``, from an encoder-decoder such as doc2query-T5
that reads title and text, or ``next``, from a causal model such as GPT-2 that is prompted with the text. Applied to its
own output, the command adds the other field and keeps the first.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import transformers as tf
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import cached_file

from dupmae_ir.console import one_line, progress, say
from dupmae_ir.device import pick_device, pick_dtype, with_torch_threads
from dupmae_ir.errors import CheckpointError, EnvironmentProblem, InputError, UsageError
from dupmae_ir.io.collections import JSON_ENDINGS, has_ending, read_collection
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.lines import ResumableJsonl, json_lines, json_records, numbered_lines, usable
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.loading import quiet_transformers
from dupmae_ir.pretrain.augment import FIELDS, AugmentConfig, AugmentResult, GeneratorConfig
from dupmae_ir.pretrain.corpus import strings, text_field, text_files


class Generator:
    """A loaded generative model: a callable from prompts to up to ``per_text`` generated texts for each."""

    def __init__(
        self,
        model: tf.PreTrainedModel,
        tokenizer: tf.PreTrainedTokenizerBase,
        config: GeneratorConfig,
    ) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config

    @classmethod
    def load(cls, config: GeneratorConfig) -> Generator:
        """Load the model that ``config`` names. Raises :class:`CheckpointError` if it does not fit the task."""
        device, _ = pick_device(config.device)
        dtype, _ = pick_dtype(config.dtype, device)
        _check_model(_load(tf.AutoConfig.from_pretrained, config, trust_remote_code=False), config)
        kind = tf.AutoModelForSeq2SeqLM if config.task == "queries" else tf.AutoModelForCausalLM
        model, loading = _load(
            kind.from_pretrained,
            config,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
        )
        if missing := sorted(loading["missing_keys"]):
            raise CheckpointError(
                f"{config.model}: {len(missing)} weights are missing (first: {missing[0]}); use a complete checkpoint"
            )
        return cls(model.to(device).eval(), _load_tokenizer(config), config)

    def __call__(
        self, prompts: Sequence[str], done: Callable[[int], object] = lambda _: None
    ) -> list[list[str]]:
        """Generated texts of each prompt, in the order of the prompts; empty ones are dropped.

        ``done(n)`` is called after each batch of n prompts.
        """
        size = max(1, self.config.batch_size // self.config.copies)
        # Sorting by length saves padding. The longest come first, so that memory runs out early if at all.
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        generated: dict[int, list[str]] = {}
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            generated.update(zip(batch, self._batch([prompts[i] for i in batch]), strict=True))
            done(len(batch))
        return [generated[i] for i in range(len(prompts))]

    def _batch(self, prompts: list[str]) -> list[list[str]]:
        # (prompts x per_text, max_new_tokens) float32 in [0, 1), each row a function of seed and prompt only.
        keys = [hashlib.sha256(f"{self.config.seed} {p}".encode()).digest()[:16] for p in prompts]
        shape = (self.config.copies, self.config.max_new_tokens)
        rows = [
            np.random.Generator(np.random.Philox(key=int.from_bytes(k))).random(shape, np.float32)
            for k in keys
        ]
        uniforms = torch.from_numpy(np.concatenate(rows)).to(self.model.device)
        sampler = _SeededSampler(self.config, uniforms)
        try:
            with quiet_transformers(), torch.inference_mode():
                ids = self._generate(prompts, sampler)
        except torch.OutOfMemoryError:
            raise EnvironmentProblem(
                f"the device's memory is full; run the same command with a `batch_size` below "
                f"{self.config.batch_size}, finished windows are kept"
            ) from None
        if sampler.nan:
            raise EnvironmentProblem(
                f"{self.config.model}: the logits are NaN in this dtype; use `dtype` float32"
            )
        texts = self.tokenizer.batch_decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        lines = [one_line(text) for text in texts]
        k = self.config.copies
        return [[line for line in lines[i : i + k] if line] for i in range(0, len(lines), k)]

    def _generate(self, prompts: list[str], sampler: _SeededSampler) -> Tensor:
        """Ids of the new tokens, (prompts x per_text, <= max_new_tokens)."""
        inputs = self.tokenizer(
            prompts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=self.config.max_input,
        ).to(self.model.device)
        given = {
            "attention_mask": inputs["attention_mask"].repeat_interleave(self.config.copies, 0)
        }
        if self.config.task == "queries":
            # Each text is encoded once for all of its queries.
            hidden = self.model.get_encoder()(
                inputs["input_ids"], attention_mask=inputs["attention_mask"]
            )[0]
            given["encoder_outputs"] = BaseModelOutput(
                hidden.repeat_interleave(self.config.copies, 0)
            )
        else:
            given["input_ids"] = inputs["input_ids"].repeat_interleave(self.config.copies, 0)
        ids = self.model.generate(
            **given,
            logits_processor=[sampler],
            do_sample=False,
            num_beams=1,
            num_return_sequences=1,
            max_new_tokens=self.config.max_new_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        return ids if self.config.task == "queries" else ids[:, inputs["input_ids"].shape[1] :]


class _SeededSampler:
    """A logits processor that keeps one token per row: where the cumulative probability passes the row's uniform."""

    def __init__(self, config: GeneratorConfig, uniforms: Tensor) -> None:
        self.uniforms, self.greedy, self.step = uniforms, config.temperature == 0, 0
        self.nan = torch.zeros(
            (), dtype=torch.bool, device=uniforms.device
        )  #: whether any score was NaN
        self.warpers: list[tf.LogitsProcessor] = []
        if config.temperature not in (0, 1):
            self.warpers.append(tf.TemperatureLogitsWarper(float(config.temperature)))
        if config.top_k:
            self.warpers.append(tf.TopKLogitsWarper(config.top_k))
        if config.top_p < 1:
            self.warpers.append(tf.TopPLogitsWarper(config.top_p))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(rows, V) scores -> 0 at the sampled token and -inf elsewhere; with temperature 0 the scores themselves."""
        self.nan = self.nan | scores.isnan().any()
        if self.greedy:
            return scores
        warped = scores.float()
        for warper in self.warpers:
            warped = warper(input_ids, warped)
        cumulative = warped.softmax(-1).cumsum(-1)
        targets = self.uniforms[:, self.step : self.step + 1] * cumulative[:, -1:]
        sampled = torch.searchsorted(cumulative, targets, right=True).clamp_(
            max=scores.shape[1] - 1
        )
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, sampled, 0.0)


def model_digest(config: GeneratorConfig) -> str:
    """sha256 over the model's files, in its folder or in the Hugging Face cache."""
    folder = Path(config.model)
    if not folder.is_dir():
        # The cache has one folder for each version of a model.
        folder = Path(_load(cached_file, config, "config.json")).parent
    return folder_digest(folder)


def _load(
    load: Callable[..., Any], config: GeneratorConfig, *arguments: object, **settings: Any
) -> Any:
    """``load(MODEL, ...)`` from a folder, the Hugging Face cache or, if ``config.download``, the hub."""
    folder = Path(config.model).is_dir()
    if folder and not (Path(config.model) / "config.json").is_file():
        raise CheckpointError(f"{config.model}: not a model folder (it has no config.json)")
    try:
        with quiet_transformers():
            return load(
                config.model, *arguments, local_files_only=folder or not config.download, **settings
            )
    except Exception as e:
        if folder or config.download:
            how = "loaded" if folder else "downloaded"
            raise CheckpointError(
                f"{config.model}: cannot be {how}: {one_line(str(e))[:200]}"
            ) from None
        raise CheckpointError(
            f"{config.model}: no such folder, and no model of that name in the Hugging Face cache; name a model "
            "folder, or add `download` if there is a network"
        ) from None


def _load_tokenizer(config: GeneratorConfig) -> tf.PreTrainedTokenizerBase:
    # A causal model continues at the end of the prompt, so padding and truncation are on the left.
    side = "right" if config.task == "queries" else "left"
    tokenizer = _load(
        tf.AutoTokenizer.from_pretrained,
        config,
        trust_remote_code=False,
        padding_side=side,
        truncation_side=side,
    )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise CheckpointError(
                f"{config.model}: the tokenizer has neither a padding nor an end token; set one: "
                "tokenizer.pad_token = ..., then tokenizer.save_pretrained(FOLDER)"
            )
        # Padding is masked out, so any token will do.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check_model(settings: tf.PretrainedConfig, config: GeneratorConfig) -> None:
    """Refuse a model that does not fit the task, or has too few positions."""
    encoder_decoder = bool(getattr(settings, "is_encoder_decoder", False))
    # BERT and similar models have a causal head in transformers too, but were not trained to generate.
    causal = not encoder_decoder and (
        type(settings) not in tf.MODEL_FOR_MASKED_LM_MAPPING
        or getattr(settings, "is_decoder", False)
    )
    expected = (
        "an encoder-decoder such as doc2query-T5"
        if config.task == "queries"
        else "a causal model such as GPT-2"
    )
    if not (encoder_decoder if config.task == "queries" else causal):
        raise CheckpointError(
            f"{config.model} is a {settings.model_type} model; `task` {config.task} requires {expected}"
        )
    most = getattr(settings, "max_position_embeddings", None)
    lengths = (config.max_input, config.max_new_tokens)
    if most and (max(lengths) if config.task == "queries" else sum(lengths)) > most:
        raise UsageError(
            f"{config.model} has {most} positions, too few for `max_input` {lengths[0]} "
            f"{'or' if config.task == 'queries' else 'and'} `max_new_tokens` {lengths[1]}; lower them"
        )


@with_torch_threads
def run(config: AugmentConfig) -> AugmentResult:
    """Write ``config.output`` and its record, and return the counts: texts, and texts that were augmented.

    A row that already has generated texts keeps them; an empty text gets an empty list. See :mod:`dupmae_ir.io.jobs`
    for what a second run returns.
    """
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")
    corpus = _survey(config.corpus, FIELDS[config.task])
    # Batch size and device affect what is generated by rounding only.
    names = (
        "task",
        "top_k",
        "top_p",
        "temperature",
        "max_new_tokens",
        "max_input",
        "seed",
        "window",
    )
    settings: dict[str, object] = {name: getattr(config, name) for name in names}
    dtype, _ = pick_dtype(config.dtype, pick_device(config.device)[0])
    settings |= {"per_text": config.copies, "dtype": str(dtype).removeprefix("torch.")}
    with Job(
        config.output,
        "pretrain.augment",
        settings,
        lambda: {"corpus": corpus.digest, "model": model_digest(config)},
        overwrite=config.overwrite,
        restart=config.restart,
        quiet=config.quiet,
    ) as job:
        if result := job.finished():
            return cast("AugmentResult", result)
        started = time.monotonic()
        # Loaded first, because a downloaded model has its digest only afterwards.
        generator = Generator.load(config)
        work = job.begin()
        lines = _generate(config, generator, corpus, work / "lines.jsonl")
        made = work / f"augmented{Path(config.output).suffix}"
        _merge(config, corpus, lines, made)
        seconds = round(time.monotonic() - started, 1)
        published = job.publish(made, {"texts": corpus.texts, "augmented": corpus.pending})
        return cast("AugmentResult", published | {"seconds": seconds})


Row = dict[str, Any]
"""``id``, ``title`` and ``text`` (a string or a list of passages), and optionally ``queries`` and ``next``."""


def read_rows(source: str | Path) -> Iterator[Row]:
    """The texts of a corpus as rows.

    A text without an id gets its line number, prefixed by the file's name in a folder of files. Raises
    :class:`InputError` that names file and line.
    """
    paths = text_files(source)
    for path in paths:
        prefix = f"{path.name}:" if len(paths) > 1 else ""
        if path.is_dir():
            raise InputError(
                f"{path} is a saved Hugging Face dataset; convert it with dataset.to_json(FILE)"
            )
        if has_ending(path.name, (".tsv",)):
            yield from (
                {"id": d.docid, "title": d.title, "text": d.text} for d in read_collection(path)
            )
        elif has_ending(path.name, JSON_ENDINGS):
            yield from (
                _row(data, where, f"{prefix}{where.rpartition(':')[2]}")
                for where, data in json_records(path)
            )
        else:
            yield from (
                {"id": f"{prefix}{number}", "title": "", "text": line.strip()}
                for number, line in numbered_lines(path)
            )


def _row(data: Row, where: str, number: str) -> Row:
    name = text_field(data, where)
    fields = {
        field: list(map(usable, strings(data, field, where)))
        for field in (name, "title", *FIELDS.values())
    }
    texts = fields[name]
    row: Row = {
        "id": str(next((data[key] for key in ("id", "_id", "docid") if key in data), number)),
        "title": " ".join(fields["title"]),
        "text": texts if isinstance(data[name], list) else "".join(texts),
    }
    return row | {field: fields[field] for field in FIELDS.values() if fields[field]}


def _prompt(row: Row) -> str:
    """The model's input for a row: title, a space, text; "" if both are empty."""
    passages = [row["text"]] if isinstance(row["text"], str) else row["text"]
    return " ".join(piece.strip() for piece in (row["title"], *passages) if piece.strip())


def _needs_texts(row: Row, field: str) -> bool:
    """Whether texts are generated for a row: ``field`` is missing or empty, and the row has text."""
    return not row.get(field) and bool(_prompt(row))


class _Survey(NamedTuple):
    """Counts and digest of the corpus, from a first pass that also finds errors before the model is loaded."""

    texts: int
    pending: int  #: texts to generate for
    digest: str  #: sha256 of all rows


def _survey(source: str, field: str) -> _Survey:
    texts = pending = 0
    sha256 = hashlib.sha256()
    for row in read_rows(source):
        texts += 1
        pending += _needs_texts(row, field)
        sha256.update(json.dumps(row).encode())
    if not texts:
        raise InputError(f"{source}: contains no texts")
    return _Survey(texts, pending, sha256.hexdigest())


def _generate(
    config: AugmentConfig, generator: Generator, corpus: _Survey, path: Path
) -> ResumableJsonl:
    """Generate the missing texts window by window: one line ``{"texts": [...]}`` per row, in reading order."""
    lines = ResumableJsonl(path, corpus.pending, config.window)
    if lines.done:
        say(f"resuming after {lines.done:,} of {corpus.pending:,} texts", config.quiet)
    field = FIELDS[config.task]
    prompts = (_prompt(row) for row in read_rows(config.corpus) if _needs_texts(row, field))
    todo = islice(prompts, lines.done, None)
    with progress(config.task, "texts", corpus.pending, config.quiet, initial=lines.done) as bar:
        while window := list(islice(todo, config.window)):
            lines.append([{"texts": texts} for texts in generator(window, bar.update)])
    return lines


def _merge(config: AugmentConfig, corpus: _Survey, lines: ResumableJsonl, path: Path) -> None:
    """Write every row of the corpus with its generated texts."""
    field = FIELDS[config.task]
    sha256 = hashlib.sha256()
    with json_lines(path) as write:
        generated = lines.rows()
        for row in read_rows(config.corpus):
            sha256.update(json.dumps(row).encode())
            texts = (
                next(generated, {"texts": []})["texts"]
                if _needs_texts(row, field)
                else row.get(field, [])
            )
            write({**row, field: texts})
        if sha256.hexdigest() != corpus.digest:
            raise InputError(
                f"{config.corpus}: changed while texts were generated for it; restore it, or add `restart`"
            )
