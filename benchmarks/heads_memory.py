"""Peak memory of the vocabulary heads, forward and backward: plain (B, L, V) logits against ours.

    python benchmarks/heads_memory.py [--lengths 512 128] [--device cuda] [--json FILE]

Heads, at B=32, V=30,522, d=768: ``mlm`` (cross-entropy at 30% of the tokens), ``decoder`` (at all but two), ``ot``
(maximum over the tokens, log softmax, bag of words) and ``together`` (a DupMAE step: all three, the first and the
third from the same hidden states). Plain is the released code: all logits, F.cross_entropy with
ignore_index, maximum over masked logits. Ours is models/objectives/token_loss.py and models/pooling.py.

Each form runs in its own process. A figure is the peak resident memory (on a GPU: allocated memory) of a forward and
backward pass, minus the memory before it (inputs, weights, libraries) and minus the gradients of the parameters
W (V, d) and b (V,), which every form returns. Losses must agree to 1e-5, and gradients at a small size in float64
to 1e-6; the status is 1 if they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dupmae_ir.console import table
from dupmae_ir.models.objectives.token_loss import token_cross_entropy
from dupmae_ir.models.pooling import ot_max

HEADS = ("mlm", "decoder", "ot", "together")
IGNORED = -100
MASKED = 0.3
BOW_WEIGHT = 0.1


@dataclass
class Inputs:
    """Inputs of the heads: two (B, L, d) outputs of the head's transform, W (V, d), b (V,), labels, bag of words."""

    hidden: Tensor
    decoded: Tensor
    weight: Tensor
    bias: Tensor
    masked: Tensor  #: (B, L) labels, -100 except on 30%
    every: Tensor  #: (B, L) labels, -100 on the first and last
    attention: Tensor  #: (B, L) 1 on tokens, 0 on padding
    bow: Tensor  #: (B, V) weights of the words, each text's sum 1

    @classmethod
    def draw(
        cls, batch: int, length: int, words: int, width: int, device: str, dtype: torch.dtype
    ) -> Inputs:
        """Random inputs; the second half of the texts has padding in its last eighth."""
        generator = torch.Generator(device).manual_seed(0)

        def normal(*shape: int, std: float = 1.0) -> Tensor:
            # In place, so that the peak before the measurement contains only the inputs.
            values = torch.empty(shape, device=device, dtype=dtype)
            return values.normal_(std=std, generator=generator).requires_grad_()

        ids = torch.randint(words, (batch, length), generator=generator, device=device)
        draws = torch.rand(ids.shape, generator=generator, device=device)
        attention = torch.ones_like(ids)
        attention[batch // 2 :, -(length // 8) :] = 0

        masked = ids.masked_fill(draws >= MASKED, IGNORED)
        every = ids.clone()
        for labels in (masked, every):
            labels[:, 0] = IGNORED
            labels[:, -1] = IGNORED
            labels[attention == 0] = IGNORED

        bow = torch.zeros(batch, words, device=device, dtype=dtype).scatter_(1, ids, 1.0)
        bow /= bow.sum(1, keepdim=True)
        return cls(
            normal(batch, length, width),
            normal(batch, length, width),
            normal(words, width, std=0.05),
            normal(words, std=0.05),
            masked,
            every,
            attention,
            bow,
        )

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The inputs with gradients."""
        return {
            "hidden": self.hidden,
            "decoded": self.decoded,
            "weight": self.weight,
            "bias": self.bias,
        }


def plain(head: str, x: Inputs) -> Tensor:
    """The formulas as in the released code."""
    loss = x.weight.new_zeros(())
    if head in ("mlm", "ot", "together"):
        logits = F.linear(x.hidden, x.weight, x.bias)
    if head in ("mlm", "together"):
        labels = x.masked.flatten()
        loss = loss + F.cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED)
    if head in ("decoder", "together"):
        decoded = F.linear(x.decoded, x.weight, x.bias)
        labels = x.every.flatten()
        loss = loss + F.cross_entropy(decoded.flatten(0, 1), labels, ignore_index=IGNORED)
    if head in ("ot", "together"):
        padding = -1000 * (1 - x.attention[:, 1:, None].to(logits.dtype))
        loss = loss + BOW_WEIGHT * _bag_of_words((logits[:, 1:] + padding).max(1).values, x)
    return loss


def ours(head: str, x: Inputs) -> Tensor:
    """The same losses without (B, L, V) logits."""
    loss = x.weight.new_zeros(())
    if head in ("mlm", "together"):
        loss = loss + token_cross_entropy(x.hidden, x.masked, x.weight, x.bias)
    if head in ("decoder", "together"):
        loss = loss + token_cross_entropy(x.decoded, x.every, x.weight, x.bias)
    if head in ("ot", "together"):
        mask = x.attention.bool()
        mask[:, 0] = False  # [CLS] is not pooled
        loss = loss + BOW_WEIGHT * _bag_of_words(ot_max(x.hidden, mask, x.weight, x.bias), x)
    return loss


FORMS: dict[str, Callable[[str, Inputs], Tensor]] = {"plain": plain, "ours": ours}


def _bag_of_words(pooled: Tensor, x: Inputs) -> Tensor:
    return -(x.bow * torch.log_softmax(pooled, 1)).sum(1).mean()


def measure(
    head: str, form: str, shape: tuple[int, int, int, int], device: str
) -> dict[str, float]:
    """Loss and bytes at the peak of one forward and backward pass; call it once per process."""
    # A small call first, so that the libraries are loaded and their memory is not counted.
    run(form, head, Inputs.draw(2, 8, 50, 16, device, torch.float32))
    inputs = Inputs.draw(*shape, device, torch.float32)
    before = memory_now(device)
    loss = run(form, head, inputs)
    gradients = sum(t.grad.nbytes for t in (inputs.weight, inputs.bias) if t.grad is not None)
    return {
        "loss": loss,
        "bytes": memory_peak(device) - before - gradients,
        "parameter_gradients": gradients,
    }


def run(form: str, head: str, inputs: Inputs) -> float:
    """A forward and backward pass; returns the loss."""
    loss = FORMS[form](head, inputs)
    loss.backward()
    return loss.item()


def memory_now(device: str) -> int:
    """Bytes in use; on a GPU the peak starts here."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return memory_peak(device)
    resident_pages = int(statm.read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


def memory_peak(device: str) -> int:
    """Bytes in use at most so far."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    # kilobytes, but on a Mac bytes
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_a_process(
    head: str, form: str, shape: tuple[int, int, int, int], device: str
) -> dict[str, float] | None:
    """:func:`measure` in a fresh process; None if it runs out of memory."""
    flags = ["--measure", head, form, "--device", device, "--shape", *map(str, shape)]
    command = [sys.executable, __file__, *flags]
    # By default glibc keeps freed blocks of up to 32 MB; returned at once, runs agree to the megabyte.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    killed = done.returncode == -9  # as the kernel does when memory is short
    refused = "OutOfMemoryError" in done.stderr or "can't allocate memory" in done.stderr
    if killed or refused:
        return None
    if done.returncode:
        sys.exit(f"{head} {form}: {done.stderr}")
    return json.loads(done.stdout)


def gradient_difference(head: str) -> float:
    """Largest |plain - ours| over all gradients at a small size in float64, relative to the largest gradient."""
    gradients: dict[str, dict[str, Tensor]] = {}
    for form in FORMS:
        inputs = Inputs.draw(4, 24, 997, 32, "cpu", torch.float64)
        run(form, head, inputs)
        gradients[form] = {}
        for name, leaf in inputs.leaves.items():
            if leaf.grad is not None:  # a head uses some of the inputs
                gradients[form][name] = leaf.grad

    plain_gradients = gradients["plain"]
    our_gradients = gradients["ours"]
    if plain_gradients.keys() != our_gradients.keys():
        sys.exit(f"{head}: gradients for {sorted(plain_gradients)} and {sorted(our_gradients)}")
    differences = []
    for name, expected in plain_gradients.items():
        difference = (expected - our_gradients[name]).abs().max() / expected.abs().max()
        differences.append(float(difference))
    return max(differences)


def compare(head: str, shape: tuple[int, int, int, int], device: str) -> dict[str, Any]:
    """The figures of both forms of a head, and their ratios and differences."""
    figures = {form: in_a_process(head, form, shape, device) for form in FORMS}
    row: dict[str, Any] = {
        "head": head,
        "length": shape[1],
        **figures,
        "gradient_difference": gradient_difference(head),
    }
    plain_figures = figures["plain"]
    our_figures = figures["ours"]
    if plain_figures and our_figures:
        row["ratio"] = plain_figures["bytes"] / our_figures["bytes"]
        loss = plain_figures["loss"]
        row["loss_difference"] = abs(loss - our_figures["loss"]) / abs(loss)
    return row


def _shown(row: dict[str, Any]) -> list[str]:
    def megabytes(form: str) -> str:
        return f"{row[form]['bytes'] / 1e6:,.0f}" if row[form] else "too much"

    losses = [f"{row[form]['loss']:.6f}" if row[form] else "-" for form in FORMS]
    ratio = f"{row['ratio']:.1f}" if "ratio" in row else "-"
    return [
        row["head"],
        str(row["length"]),
        megabytes("plain"),
        megabytes("ours"),
        ratio,
        *losses,
        f"{row['gradient_difference']:.0e}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[512, 128], help="tokens per text"
    )
    parser.add_argument(
        "--shape", nargs=4, type=int, default=[32, 0, 30522, 768], help=argparse.SUPPRESS
    )
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    batch, length, words, width = args.shape
    if args.measure:
        print(json.dumps(measure(*args.measure, (batch, length, words, width), args.device)))
        return 0
    rows = []
    for length in args.lengths:
        for head in args.heads:
            rows.append(compare(head, (batch, length, words, width), args.device))
            print(f"{head} at {length}: done", file=sys.stderr)
    header = [
        "head",
        "L",
        "plain MB",
        "ours MB",
        "ratio",
        "plain loss",
        "our loss",
        "gradients differ by",
    ]
    print(table([_shown(row) for row in rows], header))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    for row in rows:
        if row["gradient_difference"] > 1e-6 or row.get("loss_difference", 0) > 1e-5:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
