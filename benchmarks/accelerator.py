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

OURS, PEER = "ours, bfloat16", "sentence-transformers, float16, torch.compile"
COMPILED = "ours, bfloat16, torch.compile"
BATCH, UPDATES = 128, 8
SIDE = {"cuda": 8192, "cpu": 512}
"""Side of the square product."""


def settled(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    """``work``, ended when the device has finished it."""

    def run() -> Any:
        found = work()
        if device == "cuda":
            torch.cuda.synchronize()
        return found

    return run


def check(folder: Path, device: str, texts: list[str]) -> str:
    """The gate; raises when it fails."""
    encoder = TextEncoder.load(folder, device=device, dtype="float32")
    found = encoder.encode_documents(texts)
    assert found.cls is not None
    assert found.ot is not None
    cls, words, _ = plain_vectors(folder, texts)
    off = float(np.abs(found.cls - cls).max())
    rows = zip(found.ot, words, strict=True)
    shared = float(
        np.mean([len(np.intersect1d(row.indices, own[: row.nnz])) / row.nnz for row, own in rows])
    )
    assert off < 1e-3, off
    assert shared >= 0.99, shared
    return (
        f"float32 on the device: [CLS] of the plain model to {off:.0e}, {shared:.1%} of its words"
    )


def heads(width: int, device: str, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Two forms of the head on the same token states of 32 texts."""
    drawn = head.Inputs.draw(width)
    names = ("padded", "mask", "packed", "weight", "bias")
    x = dataclasses.replace(
        drawn, **{name: getattr(drawn, name).to(device, dtype) for name in names}
    )
    return {"head, ours": lambda: head.chunked(x), "head, released": lambda: head.released(x)}


class Released(DupMAE):
    """The objective in the form of the released code: logits (B, L, V) of all tokens, padding included."""

    def predict(self, hidden: torch.Tensor, labels: torch.Tensor, lm: Any = None) -> torch.Tensor:
        logits = self._logits(hidden, lm).flatten(0, 1)
        return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)

    def _pooled(self, hidden: torch.Tensor, pooling_mask: torch.Tensor) -> torch.Tensor:
        return (
            self._logits(hidden) + (1 - pooling_mask.to(hidden.dtype).unsqueeze(-1)) * -1000
        ).amax(1)

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
        self.recipe = resolve(
            "dupmae", "release", Recipe(length=min(128, max_input_length(lm)), batch_size=texts)
        )
        torch.manual_seed(0)  # the decoder's weights
        self.objective = build_objective("dupmae", lm, self.recipe)
        self.objective.__class__ = form
        set_dropout(self.objective, 0.0)
        self.device = device
        self.objective.to(device).train()
        self.optimizer = torch.optim.AdamW(self.objective.parameters(), lr=1e-4)
        corpus = _corpus(tokenizer, UPDATES * texts, int(self.recipe.length or 0))
        vocabulary = Vocabulary.of(tokenizer, len(tokenizer), "drawn")
        collate = COLLATORS["dupmae"]([corpus], vocabulary, self.recipe, 0)
        rows, lengths = [np.arange(len(corpus))], [np.diff(corpus.texts.offsets)]
        drawn = MixedBatches(rows, [1.0], 0, texts, UPDATES, lengths, pool)
        self.batches = [
            {name: value.to(device) for name, value in collate(some).items()} for some in drawn
        ]

    def __call__(self) -> None:
        for batch in self.batches:
            with torch.autocast(self.device, torch.bfloat16):
                loss, _ = self.objective(batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def operations(self) -> float:
        """Multiplications and additions that the tokens need, gradients included."""
        config = self.objective.lm.config
        layers = sum(
            p.numel() for n, p in self.objective.lm.bert.encoder.named_parameters() if p.dim() == 2
        )
        one, head = (
            layers / config.num_hidden_layers,
            config.hidden_size * (config.hidden_size + config.vocab_size),
        )
        tokens, predicted, decoded, pooled = (
            float(sum((batch[name] >= least).sum() for batch in self.batches))
            for name, least in (
                ("attention_mask", 1),
                ("encoder_labels", 0),
                ("decoder_labels", 0),
                ("pooling_mask", 1),
            )
        )
        # The backward pass of the maximum multiplies the winners only.
        return 6.0 * (tokens * (layers + one) + (predicted + decoded) * head) + 2.0 * pooled * head

    def loss(self, batch: dict[str, torch.Tensor]) -> float:
        with torch.no_grad():
            return float(self.objective(batch)[0])


def _corpus(tokenizer: Any, texts: int, length: int) -> Corpus:
    """Drawn words in texts of MS MARCO's lengths."""
    rng = np.random.default_rng(0)
    lengths = (
        rng.lognormal(np.log(75) - 0.42**2 / 2, 0.42, texts)
        .round()
        .clip(16, length)
        .astype(np.int64)
        - 2
    )
    drawn = rng.integers(min(1000, len(tokenizer) // 2), len(tokenizer), lengths.sum())
    ends = np.append(0, lengths.cumsum())
    nothing, none = (
        Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64)),
        np.zeros(texts + 1, np.int64),
    )
    return Corpus(
        "text",
        Ragged(drawn.astype(np.int64), ends),
        np.arange(texts),
        nothing,
        none,
        nothing,
        none,
        Path(),
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
    texts, side = passages.passages(args.passages, shape=args.shape), SIDE[args.device]
    half = torch.float16 if args.device == "cuda" else torch.float32  # which a processor has
    square = torch.randn(side, side).to(args.device, torch.bfloat16)
    with passages.model_folder(args.shape) as folder:
        gate = check(folder, args.device, texts[:8])
        print(gate, flush=True)
        ours = TextEncoder.load(folder, device=args.device, dtype="bfloat16")
        peer = sentence_transformers(folder, half, args.device, BATCH, not args.no_compile)
        lm = ours.model.side("document").lm
        training = Training(folder, args.device, args.train_texts, DupMAE, UPDATES)
        released = Training(folder, args.device, args.train_texts, Released, 1)
        off = abs(training.loss(training.batches[0]) / released.loss(training.batches[0]) - 1)
        assert off < 1e-4, off
        fused = (
            {}
            if args.no_compile
            else {
                COMPILED: compiled(TextEncoder.load(folder, device=args.device, dtype="bfloat16"))
            }
        )
        work = {
            OURS: lambda: ours.encode_documents(texts),
            **{
                name: lambda e=encoder: e.encode_documents(texts) for name, encoder in fused.items()
            },
            PEER: lambda: peer(texts),
            **heads(lm.config.hidden_size, args.device, torch.bfloat16),
            "pre-train": training,
            "pre-train, released": released,
            "product": lambda: square @ square,
        }
        seconds = harness.in_turns(
            {n: settled(w, args.device) for n, w in work.items()}, args.repeats, warm=2
        )
        encoding = useful_flops(ours, texts, True)
    report(
        args,
        seconds,
        gate,
        {OURS: encoding, "pre-train": training.operations(), "product": 2.0 * side**3},
    )


def report(
    args: argparse.Namespace,
    seconds: dict[str, list[float]],
    gate: str,
    operations: dict[str, float],
) -> None:
    """Claims, table and picture."""
    rates = {name: [operations[name] / s for s in seconds[name]] for name in operations}
    shares = {
        name: statistics.median(
            100 * a / b for a, b in zip(rates[name], rates["product"], strict=True)
        )
        for name in (OURS, "pre-train")
    }
    what = passages.NAMES[args.shape]
    common = {"gate": gate, "round": 2}
    faster = (
        ("encode both parts", OURS, PEER, 3),
        ("vocabulary head", "head, ours", "head, released", 1),
        ("pre-train, updates of DupMAE", "pre-train", "pre-train, released", 2),
    )
    claims = [
        harness.Claim(
            17, f"{work}, {what}", own, peer, harness.speedup(seconds, peer, own), goal, **common
        )
        for work, own, peer, goal in faster
    ]
    claims += [
        harness.Claim(
            17,
            f"{work}, share of the product rate, {what}",
            own,
            "the device",
            shares[name],
            50,
            unit=" %",
            **common,
        )
        for work, own, name in (("encode", OURS, OURS), ("pre-train", "ours", "pre-train"))
    ]
    speeds = {
        name: args.passages / s
        for name, s in harness.middle(seconds).items()
        if name in (OURS, COMPILED, PEER)
    }
    harness.report(
        "accelerator",
        claims,
        seconds,
        args,
        {
            "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
            "documents_per_second": speeds,
            "product_gflops": statistics.median(rates["product"]) / 1e9,
            "shape": args.shape,
        },
        harness.bars(f"Passages with both parts, {what}", "documents/s", speeds, (OURS,)),
    )


if __name__ == "__main__":
    main()
