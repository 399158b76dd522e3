"""Tokens per second and core of one update of pre-training for masked LM, RetroMAE and DupMAE, and what takes the time.

    python benchmarks/pretraining_step.py --text textbooks.txt.gz [--methods mlm retromae dupmae] [--anchor minilm] \\
        [--dtype bfloat16] [--dropout 0.1] [--threads 2] [--batch-size 32] [--length 128] [--repeats 5] \\
        [--torch-functions] [--profile] [--json FILE]

An update is what the trainer does: masks and padding of a batch, loss, gradient, clipping, AdamW, with the objective,
the collator and the recipe of ``dupmae-ir pretrain``. The base has MiniLM's shape and vocabulary with random weights,
which cost as much as trained ones. The methods take turns; the median of the turns counts. Time is the process's own,
of all threads, so other jobs do not count: tokens are per second and core. ``--profile`` adds the operators that
take most of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from dupmae_ir.console import table
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.objectives.bottleneck import Anchor
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.pretrain.collate import COLLATORS, Draw
from dupmae_ir.pretrain.model import build_objective
from dupmae_ir.pretrain.recipes import Recipe, resolve
from dupmae_ir.pretrain.tokens import Corpus, Ragged, Vocabulary
from dupmae_ir.training.cpu_functions import cpu_functions

SHAPE = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
STEPS = ("masks", "forward", "backward", "optimizer")


def corpus_of(path: str, tokenizer: AutoTokenizer, texts: int, length: int) -> Corpus:
    """The first ``texts`` lines of a gzipped text file."""
    with gzip.open(path, "rt", encoding="utf-8") as f:
        lines = [line.strip() for line, _ in zip(f, range(texts), strict=False)]
    found = tokenizer(lines, add_special_tokens=False, truncation=True, max_length=length - 2)[
        "input_ids"
    ]
    rows = [np.array(ids, np.int64) for ids in found if ids]
    own = Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)], dtype=np.int64))
    nothing = Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64))
    ends = np.zeros(len(rows) + 1, np.int64)
    return Corpus("text", own, np.arange(len(rows)), nothing, ends, nothing, ends, Path())


def update_of(
    method: str, corpus: Corpus, tokenizer: AutoTokenizer, args: argparse.Namespace
) -> Callable[[], dict]:
    """A function that makes one update and returns its seconds by step, and its tokens."""
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": args.dropout, "attention_probs_dropout_prob": args.dropout}
    lm = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **SHAPE, **rates)).train()
    recipe = resolve(method, "release", Recipe(length=args.length, batch_size=args.batch_size))
    objective = build_objective(method, lm, recipe).train()
    if args.anchor:
        frozen, _, _ = load_model(model_folder(args.anchor), need_ot=False, published=True)
        assert isinstance(frozen, Retriever)
        objective.anchor = Anchor(frozen, 10.0)
    collate = COLLATORS[method](
        [corpus], Vocabulary.of(tokenizer, len(tokenizer), "minilm"), recipe, 0
    )
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-4, fused=True)
    state = {"number": 0}

    def update() -> dict[str, float]:
        numbers = range(state["number"], state["number"] + args.batch_size)
        state["number"] += args.batch_size
        marks = [time.process_time()]
        batch = collate([Draw(n, 0, n % len(corpus)) for n in numbers])
        marks.append(time.process_time())
        bfloat16 = args.dtype == "bfloat16"
        functions = nullcontext() if args.torch_functions else cpu_functions(torch.device("cpu"))
        with functions, torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss, _ = objective(batch)
        marks.append(time.process_time())
        loss.backward()
        marks.append(time.process_time())
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        marks.append(time.process_time())
        spent = {name: b - a for name, a, b in zip(STEPS, marks, marks[1:], strict=False)}
        return {**spent, "tokens": float(batch["attention_mask"].sum())}

    return update


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", required=True, metavar="FILE", help="gzipped text, one passage a line"
    )
    parser.add_argument("--methods", nargs="+", default=["mlm", "retromae", "dupmae"])
    parser.add_argument("--anchor", metavar="MODEL", help="hold [CLS] to this model")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--torch-functions",
        action="store_true",
        help="attention and dropout as torch computes them",
    )
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(model_folder("minilm"), local_files_only=True)
    corpus = corpus_of(args.text, tokenizer, 2000, args.length)
    updates = {method: update_of(method, corpus, tokenizer, args) for method in args.methods}
    seconds: dict[str, list[dict[str, float]]] = {method: [] for method in updates}
    for turn in range(args.repeats + 1):
        for method, update in updates.items():
            spent = update()
            if turn:  # the first is for the caches
                seconds[method].append(spent)
    rows = []
    for method, spents in seconds.items():
        middle = {name: statistics.median(s[name] for s in spents) for name in STEPS}
        rate = statistics.median(s["tokens"] / sum(s[n] for n in STEPS) for s in spents)
        rows.append({"method": method, "tokens_per_second": rate, **middle})
    cells = [
        [r["method"], f"{r['tokens_per_second']:,.0f}", *(f"{r[n]:.3f}" for n in STEPS)]
        for r in rows
    ]
    print(
        table(
            [list(map(str, row)) for row in cells],
            ["", "tokens/s and core", *(f"{n} s" for n in STEPS)],
        )
    )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    for method, update in updates.items() if args.profile else ():
        with profile(activities=[ProfilerActivity.CPU]) as found:
            update()
        print(
            method,
            found.key_averages().table(sort_by="self_cpu_time_total", row_limit=14),
            sep="\n",
        )


if __name__ == "__main__":
    main()
