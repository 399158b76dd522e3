"""Masks of enhanced decoding: the released collator's Python lists against the compiled implementation.

    python benchmarks/masking.py [--json FILE]

For each example the released code draws min(L, 256) whole-word masks by shuffling lists of word pieces, copies one of
them for each row, masks the diagonal and converts the nested lists to an int64 tensor. ``released`` reimplements that;
ours is dupmae_ir.pretrain.masking.position_masks. Both run on one thread on the same texts, alternately and for about
the same time. The ratio is the median over the turns, so that other load on the machine affects both.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import time

import numpy as np
import torch

from dupmae_ir.pretrain import masking

RATIO = 0.5
CONTINUING = 0.25
"""Fraction of pieces that continue a word; about that of English text."""
GOALS = {128: 150, 512: 300}
"""Tokens per text -> required speed-up over the released code."""


def whole_word_mask(continues: list[bool], rng: random.Random) -> list[int]:
    """1 at masked pieces of a text that has both special tokens."""
    length = len(continues)
    candidates: list[list[int]] = []
    for i in range(1, length - 1):
        if candidates and continues[i]:
            candidates[-1].append(i)
        else:
            candidates.append([i])
    rng.shuffle(candidates)
    budget = min(512, max(1, round(length * RATIO)))
    covered: set[int] = set()
    count = 0
    for word in candidates:
        if count >= budget:
            break
        if count + len(word) > budget or any(i in covered for i in word):
            continue
        for i in word:
            covered.add(i)
            count += 1
    return [1 if i in covered else 0 for i in range(length)]


def released(continues: list[bool], rng: random.Random) -> torch.Tensor:
    """(L, L) int64, 1 = visible."""
    length = len(continues)
    pool = []
    for _ in range(min(length, 256)):
        masked = whole_word_mask(continues, rng)
        pool.append([1 - m for m in masked])
    rows = []
    for i in range(length):
        row = copy.deepcopy(pool[rng.randrange(len(pool))])
        row[i] = 0
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)


def measure(length: int, repeats: int, batch: int = 64) -> dict[str, float]:
    """Milliseconds and bytes per example of both implementations, and the ratio of their times."""
    rng = np.random.default_rng(0)
    python = random.Random(0)
    continues = rng.random((batch, length)) < CONTINUING
    continues[:, :2] = continues[:, -1:] = False
    lengths = np.full(batch, length)
    few = max(1, batch // (16 if length > 256 else 4))
    masking.position_masks(
        continues, lengths, RATIO, masking.seeds_for(0, np.arange(batch), "warm")
    )
    theirs = []
    ours = []
    for turn in range(repeats):
        start = time.perf_counter()
        lists = [released(row.tolist(), python) for row in continues[:few]]
        theirs.append((time.perf_counter() - start) / few)
        batches = 0
        start = time.perf_counter()
        while time.perf_counter() - start < few * theirs[-1]:
            seeds = masking.seeds_for(
                turn, np.arange(batches * batch, (batches + 1) * batch), "benchmark"
            )
            visible = masking.position_masks(continues, lengths, RATIO, seeds)
            batches += 1
        ours.append((time.perf_counter() - start) / (batches * batch))
    packed = masking.position_masks(continues, lengths, RATIO, seeds, bits=True)
    inner = slice(1, -1)
    return {
        "length": length,
        "released_ms": 1e3 * statistics.median(theirs),
        "ours_ms": 1e3 * statistics.median(ours),
        "ratio": statistics.median(a / b for a, b in zip(theirs, ours, strict=True)),
        "goal": GOALS.get(length, 0),
        "released_bytes": lists[0].nbytes,
        "bool_bytes": visible[0].nbytes,
        "bits_bytes": packed[0].nbytes,
        "released_masked": 1 - float(torch.stack(lists)[:, :, inner].float().mean()),
        "ours_masked": 1 - float(visible[:, :, inner].mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument(
        "--repeats", type=int, default=7, help="turns of each; medians are reported (default: 7)"
    )
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(length, args.repeats) for length in args.lengths]
    print(
        f"{'tokens':>6} {'released ms':>12} {'ours ms':>8} {'ratio (goal)':>14}  "
        f"{'int64 / bool / bits bytes':>26}  masked"
    )
    for r in rows:
        size = f"{r['released_bytes']:,} / {r['bool_bytes']:,} / {r['bits_bytes']:,}"
        ratio = f"{r['ratio']:.0f}x ({r['goal'] or '-'})"
        print(
            f"{r['length']:>6} {r['released_ms']:>12.2f} {r['ours_ms']:>8.4f} {ratio:>14}  {size:>26}  "
            f"{r['released_masked']:.3f} / {r['ours_masked']:.3f}"
        )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)


if __name__ == "__main__":
    main()
