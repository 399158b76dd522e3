"""One update of fine-tuning with [CLS] and OT against the same with [CLS] alone, and the share of padding.

    python benchmarks/finetune_step.py [--shapes minilm bert-base] [--pairs FILE] [--device cuda]
                                        [--torch-functions] [--json FILE]

An update is what the trainer does: encoding of queries and documents, loss, gradient, clipping, AdamW; at equal batch
and with the trainer's own modules. ``cls`` trains the [CLS] part alone, ``sum`` Eq. 12 with the document's top 384,
FLOPS and the parts' own losses. They take turns; medians are printed. On a processor the time is the process's own
(other jobs do not count), on a GPU the clock's. ``bound`` is the ratio of the two by multiplications alone: 6 per
weight and token in the encoder, 2 d V in OT's head (its way back is sparse). Weights are random; the head's bias lets
1% of the words (305) have a weight in a text, as after training, or with --weighted 0.5 half of them, as before it.

With --pairs the batches hold these texts; else lengths are drawn. The last lines say how much of the work of encoding
is padding: in the trainer's groups of like length, and in plain batches, padded to their longest text.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from dupmae_ir.console import table
from dupmae_ir.finetune.config import Objective
from dupmae_ir.finetune.objective import BiEncoder, batch_loss, group_by_length
from dupmae_ir.models.heads.masked_lm import head_of
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.training.cpu_functions import cpu_functions

SHAPES = {
    "minilm": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "bert-base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}
WORDS = 30522
TEXTS = 4096
"""Lengths that are drawn, of queries and of documents."""
OBJECTIVES = {
    "cls": Objective(similarity="cls"),
    "sum": Objective(similarity="sum", part_weight=0.5, query_flops=0.05, document_flops=0.01),
}
SIDES = ("query", "document")
LENGTHS = {"query": 32, "document": 128}


def lengths_of(pairs: str | None, rng: random.Random) -> dict[str, list[int]]:
    """Tokens of 4,096 queries and documents, cut as in training: of a file, or drawn like those of MS MARCO."""
    if pairs is None:
        medians = {"query": 8, "document": 75}
        lengths = {}
        for side in SIDES:
            # [CLS] and [SEP] are the two more.
            lengths[side] = [
                round(rng.lognormvariate(0, 0.4) * medians[side]) + 2 for _ in range(TEXTS)
            ]
    else:
        from dupmae_ir.finetune.pairs import read_pairs
        from dupmae_ir.models.checkpoints.loading import load_model
        from dupmae_ir.models.names import model_folder

        all_pairs = read_pairs(pairs)
        sample = rng.sample(all_pairs, min(TEXTS, len(all_pairs)))
        _, tokenizer, _ = load_model(model_folder("minilm"), need_ot=False)
        texts = {
            "query": [pair.query for pair in sample],
            "document": [pair.positive.joined() for pair in sample],
        }
        lengths = {}
        for side in SIDES:
            tokens = tokenizer(texts[side], truncation=True, max_length=LENGTHS[side])
            lengths[side] = [len(ids) for ids in tokens["input_ids"]]
    return {side: [min(n, LENGTHS[side]) for n in lengths[side]] for side in SIDES}


def batch_of(
    lengths: dict[str, list[int]], queries: int, negatives: int, device: str
) -> dict[str, torch.Tensor]:
    """A batch as the trainer's: the positives come first, then the negatives of one query after another's."""
    documents = queries * (1 + negatives)
    groups = []
    for query in range(queries):
        first_negative = queries + query * negatives
        groups.append([query, *range(first_negative, first_negative + negatives)])
    batch = {
        "group": torch.tensor(groups),
        "query_keys": torch.arange(queries),
        "document_keys": torch.arange(documents),
        "answers": torch.arange(queries).unsqueeze(1),
    }
    generator = torch.Generator().manual_seed(0)
    for side, count in (("query", queries), ("document", documents)):
        sizes = torch.tensor(lengths[side][:count])
        mask = (torch.arange(int(sizes.max())) < sizes.unsqueeze(1)).long()
        batch[f"{side}_ids"] = torch.randint(1000, WORDS, mask.shape, generator=generator) * mask
        batch[f"{side}_mask"] = mask
    return {name: tensor.to(device) for name, tensor in batch.items()}


def update_of(
    kind: str,
    shape: dict[str, int],
    batch: dict[str, Any],
    device: str,
    bf16: bool,
    weighted: float,
    ours: bool,
) -> Callable[[], float]:
    """A function that makes one update and returns its seconds."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **shape
    )
    projection = torch.nn.Linear(config.hidden_size, 384, bias=False)
    special = [0, 100, 101, 102, 103]
    objective = OBJECTIVES[kind]
    retriever = Retriever(BertForMaskedLM(config), projection, special, special)
    model = BiEncoder(retriever, objective.uses)
    model.to(device).train()
    _, uses_ot = objective.uses
    if uses_ot:
        _quiet(model.retriever, batch, weighted)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=ours)

    def update() -> float:
        started = now(device)
        with (
            cpu_functions(torch.device(device)) if ours else nullcontext(),
            torch.autocast(device, torch.bfloat16, enabled=bf16),
        ):
            parts = list(model(batch).values())
            loss, _ = batch_loss(*parts, batch, objective)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return now(device) - started

    return update


@torch.no_grad()
def _quiet(model: Any, batch: dict[str, Any], weighted: float) -> None:
    """Shift the head's bias until the share ``weighted`` of the words has a positive weight in a document."""
    model.activation = "none"
    _, weights = model(batch["document_ids"][:8], batch["document_mask"][:8], cls=False)
    # Ids below 1,000 are special or unused, and no text has them.
    descending = weights[:, 1000:].flatten().sort(descending=True).values
    threshold = descending[int(8 * weighted * (WORDS - 1000))]
    head_of(model.lm).bias.sub_(threshold)
    model.activation = "relu"


def now(device: str) -> float:
    """Seconds: of this process on a processor, of the clock on a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def bound(shape: dict[str, int]) -> float:
    """Multiplications of ``sum`` over those of ``cls``, per token."""
    d = shape["hidden_size"]
    inner = shape["intermediate_size"]
    # The factor of 3 is for forward and backward. The way back of OT's product with the vocabulary is sparse and not
    # counted, that of the head's transform is dense.
    encoder = 3 * shape["num_hidden_layers"] * (4 * d * d + 2 * d * inner)
    return (encoder + d * WORDS + 3 * d * d) / encoder


def measure(
    name: str, bf16: bool, batch: dict[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """The median seconds of an update with each objective, in turns, and their ratio."""
    shape = SHAPES[name]
    ours = not args.torch_functions
    updates = {}
    for kind in OBJECTIVES:
        updates[kind] = update_of(kind, shape, batch, args.device, bf16, args.weighted, ours)

    seconds: dict[str, list[float]] = {kind: [] for kind in OBJECTIVES}
    for turn in range(args.repeats + 1):
        for kind, update in updates.items():
            spent = update()
            if turn > 0:  # the first is for the caches
                seconds[kind].append(spent)
    cls = statistics.median(seconds["cls"])
    both = statistics.median(seconds["sum"])
    return {
        "shape": name,
        "precision": "bf16" if bf16 else "fp32",
        "cls": cls,
        "sum": both,
        "ratio": both / cls,
        "bound": bound(shape),
    }


def padding(
    lengths: dict[str, list[int]], queries: int, documents: int
) -> tuple[float, float, float]:
    """(share of padding in groups of like length, in plain batches, groups per batch)."""
    # Tokens without padding, with that of the groups, and with that of plain batches.
    real_tokens = 0
    grouped_tokens = 0
    plain_tokens = 0
    groups = 0
    batches = len(lengths["document"]) // documents
    for number in range(batches):
        for side, size in (("query", queries), ("document", documents)):
            batch = lengths[side][number * size : (number + 1) * size]
            real_tokens += sum(batch)
            plain_tokens += size * max(batch)
            for rows in group_by_length(batch):
                # The first text of a group is its longest.
                grouped_tokens += len(rows) * batch[rows[0]]
                groups += 1
    return 1 - real_tokens / grouped_tokens, 1 - real_tokens / plain_tokens, groups / batches


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--queries", type=int, default=16, help="queries in a batch (default: 16)")
    parser.add_argument(
        "--negatives", type=int, default=1, help="hard negatives of each (default: 1)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns of each (default: 5)")
    parser.add_argument(
        "--weighted", type=float, default=0.01, help="share of words with a weight (default: 0.01)"
    )
    parser.add_argument(
        "--torch-functions", action="store_true", help="attention, dropout and AdamW as before"
    )
    parser.add_argument("--pairs", metavar="FILE", help="real texts instead of drawn lengths")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lengths = lengths_of(args.pairs, random.Random(0))
    batch = batch_of(lengths, args.queries, args.negatives, args.device)

    rows = []
    cells = []
    for shape in args.shapes:
        for bf16 in (False, True):
            row = measure(shape, bf16, batch, args)
            rows.append(row)
            figures = [f"{row[name]:.2f}" for name in ("cls", "sum", "ratio", "bound")]
            cells.append([row["shape"], row["precision"], *figures])
    print(table(cells, ["shape", "precision", "cls s", "sum s", "ratio", "bound"]))

    waste = {}
    for documents in (48, 384):
        grouped, plain, groups = padding(lengths, 48, documents)
        waste[documents] = {"grouped": grouped, "plain": plain, "groups": groups}
        print(
            f"48 queries, {documents} documents: {grouped:.1%} padding in {groups:.0f} groups of like length, "
            f"{plain:.1%} without"
        )
    if args.json:
        record = json.dumps({"steps": rows, "padding": waste}, indent=2)
        Path(args.json).write_text(record + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
