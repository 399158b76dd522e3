"""A generative model that writes about texts: queries from an encoder-decoder, continuations from a causal model.

What is written about a text depends on the seed, the text and the model alone: every draw has its own chance, a
function of seed, text and position, and the token is where the cumulated probabilities pass it. Batch, order and
device thus change nothing but what rounding tips over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option
from dupmae_ir.device import DTYPES
from dupmae_ir.errors import CheckpointError, EnvironmentProblem, UsageError

TASKS = ("queries", "continuation")
PER_TEXT = {"queries": 5, "continuation": 1}


@dataclass(frozen=True, kw_only=True)
class WriterConfig:
    """A model, what it shall write, and how tokens are drawn."""

    task: str = option(help="what the model writes about each text", group="input", choices=TASKS)
    model: str = option(help="model folder; the name of a cached model works too", group="input", metavar="FOLDER")
    download: bool = option(False, "fetch a model that is no folder from the Hugging Face hub", group="input")
    per_text: int = option(0, "texts written about each text; 0 = 5 queries or 1 continuation", group="drawing")
    top_k: int = option(10, "likeliest tokens to draw from, as docT5query does; 0 = all", group="drawing")
    top_p: float = option(
        1.0, "draw from the likeliest tokens that have this share of the probability", group="drawing"
    )
    temperature: float = option(1.0, "above 1 flattens, below 1 sharpens; 0 = the likeliest token", group="drawing")
    max_new_tokens: int = option(64, "tokens written at most", group="drawing")
    max_input: int = option(
        512, "tokens read at most: the first for queries, the last for continuations", group="drawing"
    )
    seed: int = option(0, "of the draws", group="drawing")
    batch_size: int = option(64, "texts written together", group="machine")
    device: str = option("auto", "cpu, cuda, cuda:N, mps or auto", group="machine")
    dtype: str = option("auto", "arithmetic of the model", group="machine", choices=DTYPES)

    @property
    def copies(self) -> int:
        """Texts written about each text."""
        return self.per_text or PER_TEXT[self.task]


class Writer:
    """A loaded generative model: prompts in, up to ``per_text`` new texts for each out."""

    def __init__(self, model: Any, tokenizer: Any, config: WriterConfig, digest: str) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.digest = digest  #: sha256 of the model's files
        self.dtype = str(model.dtype).removeprefix("torch.")

    @classmethod
    def load(cls, config: WriterConfig) -> Writer:
        """Read the model that ``config`` names. Raises :class:`CheckpointError` where it cannot do the task."""
        import transformers as tf

        from dupmae_ir.device import pick_device, pick_dtype

        _check(config)
        device, _ = pick_device(config.device)
        dtype, _ = pick_dtype(config.dtype, device)
        source = _Source(config)
        _check_kind(source(tf.AutoConfig), config)
        kind = tf.AutoModelForSeq2SeqLM if config.task == "queries" else tf.AutoModelForCausalLM
        model, found = source(kind, dtype=dtype, output_loading_info=True)
        if lost := sorted(found["missing_keys"]):
            raise CheckpointError(
                f"{config.model}: {len(lost)} weights are missing (first: {lost[0]}), so it cannot "
                "write; name the whole model"
            )
        return cls(model.to(device).eval(), _tokenizer(source, config), config, source.digest())

    def __call__(self, prompts: list[str], done: Callable[[int], object] = lambda _: None) -> list[list[str]]:
        """New texts for each prompt, in the prompts' order, without empty ones; ``done(n)`` after each batch."""
        size = max(1, self.config.batch_size // self.config.copies)
        # Neighbours of like length waste no padding; the longest first, so that memory ends early if it ends.
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        written: dict[int, list[str]] = {}
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            written.update(zip(batch, self._batch([prompts[i] for i in batch]), strict=True))
            done(len(batch))
        return [written[i] for i in range(len(prompts))]

    def _batch(self, prompts: list[str]) -> list[list[str]]:
        import torch

        draw = _Draw(self.config, self._chances(prompts))
        try:
            with _hushed(), torch.inference_mode():
                ids = self._generated(prompts, draw)
        except torch.OutOfMemoryError:
            raise EnvironmentProblem(
                f"the device's memory is full; run the same command with a --batch-size below "
                f"{self.config.batch_size}, finished windows are kept"
            ) from None
        if draw.broken:
            raise EnvironmentProblem(f"{self.config.model} gives no numbers (NaN) in this dtype; use --dtype float32")
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        lines = [" ".join(text.split()) for text in texts]
        k = self.config.copies
        return [[line for line in lines[i : i + k] if line] for i in range(0, len(lines), k)]

    def _generated(self, prompts: list[str], draw: _Draw) -> Any:
        """Ids of the new tokens, (prompts x per_text, <= max_new_tokens)."""
        from transformers.modeling_outputs import BaseModelOutput

        read = self.tokenizer(
            prompts, return_tensors="pt", padding=True, truncation=True, max_length=self.config.max_input
        ).to(self.model.device)
        given = {"attention_mask": read["attention_mask"].repeat_interleave(self.config.copies, 0)}
        if self.config.task == "queries":
            # The text is read once, however many queries are drawn.
            hidden = self.model.get_encoder()(read["input_ids"], attention_mask=read["attention_mask"])[0]
            given["encoder_outputs"] = BaseModelOutput(hidden.repeat_interleave(self.config.copies, 0))
        else:
            given["input_ids"] = read["input_ids"].repeat_interleave(self.config.copies, 0)
        ids = self.model.generate(
            **given,
            logits_processor=[draw],
            do_sample=False,
            num_beams=1,
            num_return_sequences=1,
            max_new_tokens=self.config.max_new_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        return ids if self.config.task == "queries" else ids[:, read["input_ids"].shape[1] :]

    def _chances(self, prompts: list[str]) -> Any:
        """(prompts x per_text, max_new_tokens) float32 in [0, 1), functions of seed and prompt alone."""
        import numpy as np
        import torch

        keys = [hashlib.sha256(f"{self.config.seed} {p}".encode()).digest()[:16] for p in prompts]
        shape = (self.config.copies, self.config.max_new_tokens)
        draws = [np.random.Generator(np.random.Philox(key=int.from_bytes(k))).random(shape, np.float32) for k in keys]
        return torch.from_numpy(np.concatenate(draws)).to(self.model.device)


@contextmanager
def _hushed() -> Iterator[None]:
    """transformers' remarks and bars are not ours to show."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class _Draw:
    """A logits processor that leaves one token: the one where the cumulated probabilities pass the row's chance."""

    def __init__(self, config: WriterConfig, chances: Any) -> None:
        from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        self.chances, self.greedy, self.step = chances, config.temperature == 0, 0
        self.failed: Any = None
        self.warpers: list[Any] = []
        if config.temperature not in (0, 1):
            self.warpers.append(TemperatureLogitsWarper(float(config.temperature)))
        if config.top_k:
            self.warpers.append(TopKLogitsWarper(config.top_k))
        if config.top_p < 1:
            self.warpers.append(TopPLogitsWarper(config.top_p))

    @property
    def broken(self) -> bool:
        """Whether the model gave something that is not a number."""
        return self.failed is not None and bool(self.failed)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """(rows, V) scores -> -inf everywhere but 0 at the drawn token."""
        import torch

        failed = scores.isnan().any()
        self.failed = failed if self.failed is None else self.failed | failed
        if self.greedy:
            return scores
        warped = scores.float()
        for warper in self.warpers:
            warped = warper(input_ids, warped)
        cumulated = warped.softmax(-1).cumsum(-1)
        aims = self.chances[:, self.step : self.step + 1] * cumulated[:, -1:]
        drawn = torch.searchsorted(cumulated, aims, right=True).clamp_(max=scores.shape[1] - 1)
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)


class _Source:
    """Where a model comes from: a folder, the Hugging Face cache or, if allowed, its hub."""

    def __init__(self, config: WriterConfig) -> None:
        self.name, self.download = config.model, config.download
        self.folder = Path(config.model).is_dir()
        if self.folder and not (Path(config.model) / "config.json").is_file():
            raise CheckpointError(f"{config.model}: not a model folder (it holds no config.json)")

    def __call__(self, kind: Any, **settings: Any) -> Any:
        """``kind.from_pretrained``, its failure in one line."""
        local = self.folder or not self.download
        try:
            with _hushed():
                return kind.from_pretrained(self.name, local_files_only=local, trust_remote_code=False, **settings)
        except Exception as e:
            if self.folder:
                why = f"does not load: {' '.join(str(e).split())[:200]}"
            elif self.download:
                why = f"could not be fetched: {' '.join(str(e).split())[:200]}"
            else:
                why = (
                    "no such folder, nor a model of that name in the Hugging Face cache; name a model's folder, "
                    "or with a network add --download"
                )
            raise CheckpointError(f"{self.name}: {why}") from None

    def digest(self) -> str:
        from transformers.utils import cached_file

        from dupmae_ir.models.checkpoints.digest import folder_digest

        # A hub model lies in a folder too, one for each of its versions.
        return folder_digest(Path(cached_file(self.name, "config.json", local_files_only=True)).parent)


def _tokenizer(source: _Source, config: WriterConfig) -> Any:
    """A causal model goes on where the prompt ends, so what it lacks or loses is at the front."""
    from transformers import AutoTokenizer

    side = "right" if config.task == "queries" else "left"
    tokenizer = source(AutoTokenizer, padding_side=side, truncation_side=side)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise CheckpointError(
                f"{config.model}: the tokenizer has neither a padding nor an end token; set one: "
                "tokenizer.pad_token = ..., then tokenizer.save_pretrained(FOLDER)"
            )
        # Padding is masked out, so any token may stand there.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check(config: WriterConfig) -> None:
    least = {"per_text": 0, "top_k": 0, "max_new_tokens": 1, "max_input": 1, "batch_size": 1, "seed": 0}
    for name, low in least.items():
        if getattr(config, name) < low:
            raise UsageError(f"--{name.replace('_', '-')} must be {low} or more, got {getattr(config, name)}")
    if not 0 < config.top_p <= 1:
        raise UsageError(f"--top-p must be above 0 and at most 1, got {config.top_p:g}")
    if not 0 <= config.temperature < float("inf"):
        raise UsageError(f"--temperature must be 0 or more, got {config.temperature:g}")
    if config.temperature == 0 and config.copies > 1:
        raise UsageError("--temperature 0 writes the same text every time; add --per-text 1")


def _check_kind(settings: Any, config: WriterConfig) -> None:
    """Refuse a model that cannot do the task, or not at these lengths."""
    import transformers as tf

    reads_and_writes = bool(getattr(settings, "is_encoder_decoder", False))
    # BERT and its like have a causal head in transformers too, but were not trained to write.
    writes = not reads_and_writes and (
        type(settings) not in tf.MODEL_FOR_MASKED_LM_MAPPING or getattr(settings, "is_decoder", False)
    )
    wanted = "an encoder-decoder such as doc2query-T5" if config.task == "queries" else "a causal model such as GPT-2"
    if not (reads_and_writes if config.task == "queries" else writes):
        raise CheckpointError(f"{config.model} is a {settings.model_type} model; --task {config.task} wants {wanted}")
    most = getattr(settings, "max_position_embeddings", None)
    lengths = (config.max_input, config.max_new_tokens)
    if most and (max(lengths) if config.task == "queries" else sum(lengths)) > most:
        raise UsageError(
            f"{config.model} has {most} positions, too few for --max-input {lengths[0]} "
            f"{'or' if config.task == 'queries' else 'and'} --max-new-tokens {lengths[1]}; lower them"
        )
