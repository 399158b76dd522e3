"""Encoding, the vocabulary head and pre-training on an accelerator, and the share of its product rate that they reach.

    python benchmarks/accelerator.py [--device cuda] [--shape base] [--passages 4096]
    python benchmarks/accelerator.py --device cpu --shape tiny --passages 16 --no-compile --no-save    # a try

Row 17 of the second table of benchmarks/archive.md; it needs nothing but a machine with an accelerator, and takes a few
minutes there. In turns of one process, with random weights and texts of MS MARCO's lengths:

  encode      both parts of all passages in bfloat16, one pass over packed batches, against sentence-transformers in
              float16 with torch.compile, in two passes; and ours with what follows the attention of a layer compiled
  head        from token states to the top 384 words: packed and in chunks, against the released padded form
  pre-train   8 updates of DupMAE in bfloat16 without dropout, 128 texts of at most 128 tokens: batches of similar
              length, heads in chunks over the tokens that they need, against the released trainer's form: batches in
              random order, padded, and the logits of all tokens at once
  product     a large product in bfloat16, which is the rate that shares are of

Gate: in float32 on the device both parts equal those of the plain model on the processor, [CLS] to 1e-3, and 99 % of
the words; both forms of pre-training have one loss, to 1e-4.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import head
import numpy as np
import passages
import torch
from torch.nn import functional as F

from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.heads.masked_lm import head_of, max_input_length
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.objectives.token_loss import IGNORED
from dupmae_ir.pretrain.collate import COLLATORS
from dupmae_ir.pretrain.model import build_objective
from dupmae_ir.pretrain.recipes import Recipe, resolve
from dupmae_ir.pretrain.tokens import Corpus, Ragged, Vocabulary
from dupmae_ir.pretrain.trainer import MixedBatches
from dupmae_ir.training.layers import set_dropout
from encode import plain_vectors, sentence_transformers, useful_flops

OURS = "ours, bfloat16"
PEER = "sentence-transformers, float16, torch.compile"
COMPILED = "ours, bfloat16, torch.compile"
BATCH = 128
UPDATES = 8
SIDE = {"cuda": 8192, "cpu": 512}
"""Side of the square product."""


def settled(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    """``work`` that returns when the device has finished it."""

    def run() -> Any:
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
        return result

    return run


def check(folder: Path, device: str, texts: list[str]) -> str:
    """The gate; raises when it fails."""
    encoder = TextEncoder.load(folder, device=device, dtype="float32")
    encoded = encoder.encode_documents(texts)
    assert encoded.cls is not None
    assert encoded.ot is not None
    cls, words, _ = plain_vectors(folder, texts)

    difference = float(np.abs(encoded.cls - cls).max())
    shares = []
    for row, expected in zip(encoded.ot, words, strict=True):
        shared_words = np.intersect1d(row.indices, expected[: row.nnz])
        shares.append(len(shared_words) / row.nnz)
    shared = float(np.mean(shares))
    assert difference < 1e-3, difference
    assert shared >= 0.99, shared
    return f"float32 on the device: [CLS] of the plain model to {difference:.0e}, {shared:.1%} of its words"


def heads(width: int, device: str, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Two forms of the head on the same token states of 32 texts."""
    drawn = head.Inputs.draw(width)
    moved = {}
    for name in ("padded", "mask", "packed", "weight", "bias"):
        moved[name] = getattr(drawn, name).to(device, dtype)
    x = dataclasses.replace(drawn, **moved)
    return {"head, ours": lambda: head.chunked(x), "head, released": lambda: head.released(x)}


class Released(DupMAE):
    """The objective in the form of the released code: logits (B, L, V) of all tokens, padding included."""

    def predict(self, hidden: torch.Tensor, labels: torch.Tensor, lm: Any = None) -> torch.Tensor:
        """The cross-entropy of the labelled tokens."""
        logits = self._logits(hidden, lm).flatten(0, 1)
        return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)

    def _pooled(self, hidden: torch.Tensor, pooling_mask: torch.Tensor) -> torch.Tensor:
        padding = (1 - pooling_mask.to(hidden.dtype).unsqueeze(-1)) * -1000
        return (self._logits(hidden) + padding).amax(1)

    def _logits(self, hidden: torch.Tensor, lm: Any = None) -> torch.Tensor:
        head = head_of(self.lm if lm is None else lm)
        return F.linear(head.transform(hidden), head.weight, head.bias)


class Training:
    """Updates of DupMAE on the same texts in one of the two forms."""

    def __init__(
        self, folder: Path, device: str, texts: int, form: type[DupMAE], pool: int
    ) -> None:
        model, tokenizer, _ = load_model(folder)
        lm = model.side("document").lm.train().requires_grad_(True)
        recipe = Recipe(length=min(128, max_input_length(lm)), batch_size=texts)
        self.recipe = resolve("dupmae", "release", recipe)
        torch.manual_seed(0)  # the decoder's weights
        self.objective = build_objective("dupmae", lm, self.recipe)
        # Both forms have the same weights; only the class of the objective differs.
        self.objective.__class__ = form
        set_dropout(self.objective, 0.0)
        self.device = device
        self.objective.to(device).train()
        self.optimizer = torch.optim.AdamW(self.objective.parameters(), lr=1e-4)

        corpus = _corpus(tokenizer, UPDATES * texts, int(self.recipe.length or 0))
        vocabulary = Vocabulary.of(tokenizer, len(tokenizer), "drawn")
        collate = COLLATORS["dupmae"]([corpus], vocabulary, self.recipe, 0)
        rows = [np.arange(len(corpus))]
        lengths = [np.diff(corpus.texts.offsets)]
        self.batches = []
        for batch_rows in MixedBatches(rows, [1.0], 0, texts, UPDATES, lengths, pool):
            batch = collate(batch_rows)
            self.batches.append({name: value.to(device) for name, value in batch.items()})

    def __call__(self) -> None:
        """Run one update per batch."""
        for batch in self.batches:
            with torch.autocast(self.device, torch.bfloat16):
                loss, _ = self.objective(batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def operations(self) -> float:
        """Multiplications and additions that the tokens need, gradients included."""
        lm = self.objective.lm
        config = lm.config
        encoder_weights = sum(p.numel() for p in lm.bert.encoder.parameters() if p.dim() == 2)
        # The decoder is one layer.
        decoder_weights = encoder_weights / config.num_hidden_layers
        head_weights = config.hidden_size * (config.hidden_size + config.vocab_size)

        tokens = self._count("attention_mask", 1)
        predicted = self._count("encoder_labels", 0) + self._count("decoder_labels", 0)
        pooled = self._count("pooling_mask", 1)

        # A multiplication and an addition forward, and twice as many backward.
        trained = tokens * (encoder_weights + decoder_weights) + predicted * head_weights
        # The backward pass of the maximum multiplies the winners only, so the forward pass alone is counted.
        return 6.0 * trained + 2.0 * pooled * head_weights

    def _count(self, name: str, minimum: int) -> float:
        """Elements of a tensor of all batches that are at least ``minimum``."""
        return float(sum((batch[name] >= minimum).sum() for batch in self.batches))

    def loss(self, batch: dict[str, torch.Tensor]) -> float:
        """The loss of a batch, without gradients."""
        with torch.no_grad():
            return float(self.objective(batch)[0])


def _corpus(tokenizer: Any, texts: int, length: int) -> Corpus:
    """Drawn words in texts of MS MARCO's lengths."""
    rng = np.random.default_rng(0)
    drawn_lengths = rng.lognormal(np.log(75) - 0.42**2 / 2, 0.42, texts)
    # Lengths include [CLS] and [SEP], which the collator adds.
    lengths = drawn_lengths.round().clip(16, length).astype(np.int64) - 2
    first_word = min(1000, len(tokenizer) // 2)
    ids = rng.integers(first_word, len(tokenizer), lengths.sum()).astype(np.int64)
    tokens = Ragged(ids, np.append(0, lengths.cumsum()))
    no_tokens = Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64))
    no_spans = np.zeros(texts + 1, np.int64)
    return Corpus(
        "text", tokens, np.arange(texts), no_tokens, no_spans, no_tokens, no_spans, Path()
    )


def compiled(encoder: TextEncoder) -> TextEncoder:
    """``encoder`` with what follows the attention of each layer compiled."""
    packed = encoder._on("document")
    assert packed is not None
    for layer in packed._stack._layers:
        layer._after = torch.compile(layer._after, dynamic=True)
    return encoder


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--device", choices=tuple(SIDE), default="cuda")
    parser.add_argument("--shape", choices=tuple(passages.SHAPES), default="base")
    parser.add_argument("--passages", type=int, default=4096)
    parser.add_argument("--train-texts", type=int, default=128)
    parser.add_argument("--no-compile", action="store_true", help="the peer without torch.compile")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "this machine has no CUDA device; --device cpu --no-save shows that the benchmark runs"
        )
    texts = passages.passages(args.passages, shape=args.shape)
    side = SIDE[args.device]
    # float16 is for the accelerator; on a processor the peer runs in float32.
    half = torch.float16 if args.device == "cuda" else torch.float32
    square = torch.randn(side, side).to(args.device, torch.bfloat16)

    with passages.model_folder(args.shape) as folder:
        gate = check(folder, args.device, texts[:8])
        print(gate, flush=True)
        ours = TextEncoder.load(folder, device=args.device, dtype="bfloat16")
        peer = sentence_transformers(folder, half, args.device, BATCH, not args.no_compile)
        width = ours.model.side("document").lm.config.hidden_size

        training = Training(folder, args.device, args.train_texts, DupMAE, UPDATES)
        released = Training(folder, args.device, args.train_texts, Released, 1)
        batch = training.batches[0]
        difference = abs(training.loss(batch) / released.loss(batch) - 1)
        assert difference < 1e-4, difference

        work: dict[str, Callable[[], Any]] = {OURS: lambda: ours.encode_documents(texts)}
        if not args.no_compile:
            fused = compiled(TextEncoder.load(folder, device=args.device, dtype="bfloat16"))
            work[COMPILED] = lambda: fused.encode_documents(texts)
        work[PEER] = lambda: peer(texts)
        work |= heads(width, args.device, torch.bfloat16)
        work["pre-train"] = training
        work["pre-train, released"] = released
        work["product"] = lambda: square @ square

        on_device = {name: settled(variant, args.device) for name, variant in work.items()}
        seconds = harness.in_turns(on_device, args.repeats, warm=2)
        operations = {
            OURS: useful_flops(ours, texts, True),
            "pre-train": training.operations(),
            "product": 2.0 * side**3,
        }
    report(args, seconds, gate, operations)


def report(
    args: argparse.Namespace,
    seconds: dict[str, list[float]],
    gate: str,
    operations: dict[str, float],
) -> None:
    """Claims, table and picture."""
    rates = {}
    for name, count in operations.items():
        rates[name] = [count / taken for taken in seconds[name]]
    what = passages.NAMES[args.shape]
    claims = []

    def claim_speedup(text: str, ours: str, peer: str, goal: float) -> None:
        ratio = harness.speedup(seconds, peer, ours)
        text = f"{text}, {what}"
        claims.append(harness.Claim(17, text, ours, peer, ratio, goal, gate=gate, round=2))

    def claim_share(text: str, ours: str, name: str) -> None:
        turns = zip(rates[name], rates["product"], strict=True)
        share = statistics.median(100 * rate / product for rate, product in turns)
        text = f"{text}, share of the product rate, {what}"
        claims.append(
            harness.Claim(17, text, ours, "the device", share, 50, unit=" %", gate=gate, round=2)
        )

    claim_speedup("encode both parts", OURS, PEER, 3)
    claim_speedup("vocabulary head", "head, ours", "head, released", 1)
    claim_speedup("pre-train, updates of DupMAE", "pre-train", "pre-train, released", 2)
    claim_share("encode", OURS, OURS)
    claim_share("pre-train", "ours", "pre-train")

    speeds = {}
    for name, taken in harness.middle(seconds).items():
        if name in (OURS, COMPILED, PEER):
            speeds[name] = args.passages / taken
    details = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "documents_per_second": speeds,
        "product_gflops": statistics.median(rates["product"]) / 1e9,
        "shape": args.shape,
    }
    picture = harness.bars(f"Passages with both parts, {what}", "documents/s", speeds, (OURS,))
    harness.report("accelerator", claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
