"""The masks of enhanced decoding: the released collator's rule in Python lists against the compiled one.

    python benchmarks/masking.py [--json FILE]

Per example the released code draws min(L, 256) whole-word masks by shuffling lists of word pieces, copies one of them
for every row, hides the diagonal and makes an int64 tensor of the nested lists. ``released`` restates that; ours is
dupmae_ir.pretrain.masking.position_masks. Both run on one thread, turn about and about as long, on the same texts; the
ratio is the median over the turns, so that other work on the machine slows both.
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
"""Share of pieces that continue a word; English text has about this many."""
GOALS = {128: 150, 512: 300}
"""Times the released speed that are asked for."""


def whole_word_mask(continues: list[bool], rng: random.Random) -> list[int]:
    """1 at hidden pieces of a text with both specials."""
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
        hidden = whole_word_mask(continues, rng)
        pool.append([1 - m for m in hidden])
    rows = []
    for i in range(length):
        row = copy.deepcopy(pool[rng.randrange(len(pool))])
        row[i] = 0
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)


def measure(length: int, repeats: int, batch: int = 64) -> dict[str, float]:
    """Milliseconds per example of both, the ratio, and bytes per example."""
    rng, python = np.random.default_rng(0), random.Random(0)
    continues = rng.random((batch, length)) < CONTINUING
    continues[:, :2] = continues[:, -1:] = False
    lengths = np.full(batch, length)
    few = max(1, batch // (16 if length > 256 else 4))
    masking.position_masks(continues, lengths, RATIO, masking.seeds_for(0, np.arange(batch), "warm"))
    theirs, ours = [], []
    for turn in range(repeats):
        start = time.perf_counter()
        lists = [released(row.tolist(), python) for row in continues[:few]]
        theirs.append((time.perf_counter() - start) / few)
        batches, start = 0, time.perf_counter()
        while time.perf_counter() - start < few * theirs[-1]:
            seeds = masking.seeds_for(turn, np.arange(batches * batch, (batches + 1) * batch), "benchmark")
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
        "released_hidden": 1 - float(torch.stack(lists)[:, :, inner].float().mean()),
        "ours_hidden": 1 - float(visible[:, :, inner].mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--repeats", type=int, default=7, help="turns of each; medians are told (default: 7)")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(length, args.repeats) for length in args.lengths]
    print(
        f"{'tokens':>6} {'released ms':>12} {'ours ms':>8} {'ratio (goal)':>14}  "
        f"{'int64 / bool / bits bytes':>26}  hidden"
    )
    for r in rows:
        size = f"{r['released_bytes']:,} / {r['bool_bytes']:,} / {r['bits_bytes']:,}"
        ratio = f"{r['ratio']:.0f}x ({r['goal'] or '-'})"
        print(
            f"{r['length']:>6} {r['released_ms']:>12.2f} {r['ours_ms']:>8.4f} {ratio:>14}  {size:>26}  "
            f"{r['released_hidden']:.3f} / {r['ours_hidden']:.3f}"
        )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)


if __name__ == "__main__":
    main()
