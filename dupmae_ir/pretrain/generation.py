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
        self.model = model
        self.tokenizer = tokenizer
        self.config = config

    @classmethod
    def load(cls, config: GeneratorConfig) -> Generator:
        """Load the model that ``config`` names. Raises :class:`CheckpointError` if it does not fit the task."""
        device, _ = pick_device(config.device)
        dtype, _ = pick_dtype(config.dtype, device)
        settings = _load(tf.AutoConfig.from_pretrained, config, trust_remote_code=False)
        _check_model(settings, config)
        if config.task == "queries":
            model_class = tf.AutoModelForSeq2SeqLM
        else:
            model_class = tf.AutoModelForCausalLM
        model, loading = _load(
            model_class.from_pretrained,
            config,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
        )
        # transformers would initialise missing weights at random and only warn.
        missing = sorted(loading["missing_keys"])
        if missing:
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
            texts = self._batch([prompts[i] for i in batch])
            generated.update(zip(batch, texts, strict=True))
            done(len(batch))
        return [generated[i] for i in range(len(prompts))]

    def _batch(self, prompts: list[str]) -> list[list[str]]:
        sampler = _SeededSampler(self.config, self._uniforms(prompts).to(self.model.device))
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
        lines = iter(map(one_line, texts))
        lines_by_prompt = []
        for _ in prompts:
            lines_of_prompt = islice(lines, self.config.copies)
            lines_by_prompt.append([line for line in lines_of_prompt if line])
        return lines_by_prompt

    def _uniforms(self, prompts: list[str]) -> Tensor:
        """(prompts x per_text, max_new_tokens) float32 in [0, 1); each row is a function of seed and prompt only."""
        shape = (self.config.copies, self.config.max_new_tokens)
        uniforms = []
        for prompt in prompts:
            # Philox has keys of 128 bits.
            key = hashlib.sha256(f"{self.config.seed} {prompt}".encode()).digest()[:16]
            rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key)))
            uniforms.append(rng.random(shape, np.float32))
        return torch.from_numpy(np.concatenate(uniforms))

    def _generate(self, prompts: list[str], sampler: _SeededSampler) -> Tensor:
        """Ids of the new tokens, (prompts x per_text, <= max_new_tokens)."""
        inputs = self.tokenizer(
            prompts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=self.config.max_input,
        ).to(self.model.device)
        prompt_ids = inputs["input_ids"]
        attention_mask = inputs["attention_mask"]
        copies = self.config.copies
        arguments = {"attention_mask": attention_mask.repeat_interleave(copies, 0)}
        if self.config.task == "queries":
            # Each text is encoded once for all of its queries.
            encoder = self.model.get_encoder()
            hidden = encoder(prompt_ids, attention_mask=attention_mask)[0]
            arguments["encoder_outputs"] = BaseModelOutput(hidden.repeat_interleave(copies, 0))
        else:
            arguments["input_ids"] = prompt_ids.repeat_interleave(copies, 0)
        # With one score above -inf, greedy search takes the sampled token.
        ids = self.model.generate(
            **arguments,
            logits_processor=[sampler],
            do_sample=False,
            num_beams=1,
            num_return_sequences=1,
            max_new_tokens=self.config.max_new_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        if self.config.task == "queries":
            return ids
        # A causal model returns the prompt as well.
        return ids[:, prompt_ids.shape[1] :]


class _SeededSampler:
    """A logits processor that keeps one token per row: where the cumulative probability passes the row's uniform."""

    def __init__(self, config: GeneratorConfig, uniforms: Tensor) -> None:
        self.uniforms = uniforms
        self.greedy = config.temperature == 0
        self.step = 0
        #: Whether any score was NaN. A tensor on the device, so that a step does not wait for the GPU.
        self.nan = torch.zeros((), dtype=torch.bool, device=uniforms.device)
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
        # Scaled by the last sum, which is 1 except for rounding.
        targets = self.uniforms[:, self.step : self.step + 1] * cumulative[:, -1:]
        # A target that is rounded up to the last sum would be found behind the end.
        sampled = torch.searchsorted(cumulative, targets, right=True)
        sampled = sampled.clamp_(max=scores.shape[1] - 1)
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
    is_folder = Path(config.model).is_dir()
    if is_folder and not (Path(config.model) / "config.json").is_file():
        raise CheckpointError(f"{config.model}: not a model folder (it has no config.json)")
    local_only = is_folder or not config.download
    try:
        with quiet_transformers():
            return load(config.model, *arguments, local_files_only=local_only, **settings)
    except Exception as e:
        if is_folder or config.download:
            attempt = "loaded" if is_folder else "downloaded"
            reason = one_line(str(e))[:200]
            raise CheckpointError(f"{config.model}: cannot be {attempt}: {reason}") from None
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
    is_encoder_decoder = bool(getattr(settings, "is_encoder_decoder", False))
    # BERT and similar models have a causal head in transformers too, but were not trained to generate.
    is_causal = not is_encoder_decoder and (
        type(settings) not in tf.MODEL_FOR_MASKED_LM_MAPPING
        or getattr(settings, "is_decoder", False)
    )
    if config.task == "queries":
        fits = is_encoder_decoder
        expected = "an encoder-decoder such as doc2query-T5"
        # Encoder and decoder number positions separately.
        needed_positions = max(config.max_input, config.max_new_tokens)
        conjunction = "or"
    else:
        fits = is_causal
        expected = "a causal model such as GPT-2"
        needed_positions = config.max_input + config.max_new_tokens
        conjunction = "and"

    if not fits:
        raise CheckpointError(
            f"{config.model} is a {settings.model_type} model; `task` {config.task} requires {expected}"
        )
    # T5 has relative positions, and no limit.
    positions = getattr(settings, "max_position_embeddings", None)
    if positions and needed_positions > positions:
        raise UsageError(
            f"{config.model} has {positions} positions, too few for `max_input` {config.max_input} "
            f"{conjunction} `max_new_tokens` {config.max_new_tokens}; lower them"
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
    device, _ = pick_device(config.device)
    dtype, _ = pick_dtype(config.dtype, device)
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
        result = job.finished()
        if result:
            return cast("AugmentResult", result)
        started = time.monotonic()
        # Loaded first, because a downloaded model has its digest only afterwards.
        generator = Generator.load(config)
        work = job.begin()
        lines = _generate(config, generator, corpus, work / "lines.jsonl")
        # The suffix decides whether the file is gzipped.
        augmented = work / f"augmented{Path(config.output).suffix}"
        _merge(config, corpus, lines, augmented)
        seconds = round(time.monotonic() - started, 1)
        published = job.publish(augmented, {"texts": corpus.texts, "augmented": corpus.pending})
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
            for document in read_collection(path):
                yield {"id": document.docid, "title": document.title, "text": document.text}
        elif has_ending(path.name, JSON_ENDINGS):
            for where, record in json_records(path):
                _, _, number = where.rpartition(":")
                yield _row(record, where, f"{prefix}{number}")
        else:
            for line_number, line in numbered_lines(path):
                yield {"id": f"{prefix}{line_number}", "title": "", "text": line.strip()}


def _row(record: Row, where: str, default_id: str) -> Row:
    """The row of a JSON record. ``where`` starts the messages of errors."""
    text_name = text_field(record, where)
    fields = {}
    for name in (text_name, "title", *FIELDS.values()):
        fields[name] = [usable(value) for value in strings(record, name, where)]

    docid = default_id
    for name in ("id", "_id", "docid"):
        if name in record:
            docid = str(record[name])
            break
    texts = fields[text_name]
    row: Row = {
        "id": docid,
        "title": " ".join(fields["title"]),
        "text": texts if isinstance(record[text_name], list) else "".join(texts),
    }
    for name in FIELDS.values():
        if fields[name]:
            row[name] = fields[name]
    return row


def _prompt(row: Row) -> str:
    """The model's input for a row: title, a space, text; "" if both are empty."""
    passages = [row["text"]] if isinstance(row["text"], str) else row["text"]
    parts = [part.strip() for part in (row["title"], *passages)]
    return " ".join(filter(None, parts))


def _needs_texts(row: Row, field: str) -> bool:
    """Whether texts are generated for a row: ``field`` is missing or empty, and the row has text."""
    return not row.get(field) and bool(_prompt(row))


class _Survey(NamedTuple):
    """Counts and digest of the corpus, from a first pass that also finds errors before the model is loaded."""

    texts: int
    pending: int  #: texts to generate for
    digest: str  #: sha256 of all rows


def _survey(source: str, field: str) -> _Survey:
    texts = 0
    pending = 0
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
    remaining = islice(prompts, lines.done, None)
    with progress(config.task, "texts", corpus.pending, config.quiet, initial=lines.done) as bar:
        while window := list(islice(remaining, config.window)):
            generated = generator(window, bar.update)
            lines.append([{"texts": texts} for texts in generated])
    return lines


def _merge(config: AugmentConfig, corpus: _Survey, lines: ResumableJsonl, path: Path) -> None:
    """Write every row of the corpus with its generated texts."""
    field = FIELDS[config.task]
    sha256 = hashlib.sha256()
    with json_lines(path) as write:
        generated = lines.rows()
        for row in read_rows(config.corpus):
            sha256.update(json.dumps(row).encode())
            if _needs_texts(row, field):
                # A corpus that changed may have more texts than were generated for; the digest reports it below.
                texts: list[str] = next(generated, {"texts": []})["texts"]
            else:
                texts = row.get(field, [])
            write({**row, field: texts})
        if sha256.hexdigest() != corpus.digest:
            raise InputError(
                f"{config.corpus}: changed while texts were generated for it; restore it, or add `restart`"
            )
