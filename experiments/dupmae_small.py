"""Make dupmae-small, the DupMAE inside the package: fine-tuned in stages from scratch, in 8 bits, with its card.

    python experiments/dupmae_small.py --data DATA --output runs/mae-from-scratch

runs the steps of mae_from_scratch.py that it needs, from the stored checkpoint of stage 1, and those that are done are
skipped. OUTPUT/dupmae-small is the stage with the best sum on the dev pairs; as stored, it is read out on the public
collections. To ship it, copy it to dupmae_ir/dupmae_small and the records to experiments/records/mae-from-scratch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mae_from_scratch
import mae_readouts
from embedded import BOOKS, RECORDS, store
from mae_tables import PARTS, stage_scores, table
from publish import sources_table, sources_text
from records import Record, read_records
from systems import read_json

from dupmae_ir.console import guarded
from dupmae_ir.errors import DupmaeError
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.names import SMALL

STAGES = ("small.stage1", "small.stage2", "small.stage3")
READ = tuple(f"readout.{stage}.dev" for stage in STAGES)
STEPS = ("data", "stage1.dupmae.seed0", *STAGES, "small.negatives", "small.opinions", *READ)
BESIDE = {"bm25": "BM25", "embedded": "the embedded default"}
MOST_BYTES = 8_000_000
MEASURES = ("nDCG@10", "R@100")


def card(
    chosen: str,
    settings: Mapping[str, Any],
    dev: Mapping[str, Mapping[str, float]],
    sources: str,
    scores: str,
) -> str:
    """The model card, README.md of the folder.

    Args:
        chosen: step of the stored model.
        settings: of mae_from_scratch.toml.
        dev: step -> part -> nDCG@10 on the dev pairs.
        sources: text of SOURCES.md.
        scores: tables of the public collections.
    """
    own = settings["small"]
    lines = []
    for step, parts in dev.items():
        cells = [
            step.removeprefix("small."),
            *(f"{parts[part]:.4f}" for part in ("cls", "ot", "sum")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rows = "\n".join(lines)
    return f"""# dupmae-small

A DupMAE (RetroMAE-2) of 5.4 million parameters, trained from scratch on two processor cores: BERT with 4 layers of 256,
4 heads, an uncased English vocabulary of 8,192 word pieces. One forward pass gives a [CLS] vector of 256 numbers and
learned weights over the vocabulary (OT, the strongest 384 of a document), so a document can be found by words that it
does not contain. Weights are stored in 8 bits. It is the model to see the method with, not the one to search with: the
embedded default and BM25 are better, as the tables show.

```sh
dupmae-ir demo --model dupmae-small --output runs/demo-small
dupmae-ir encode --model dupmae-small --corpus corpus.jsonl --index index
```

## How it was made
1. **Masked LM from scratch** on 25 million tokens, then **DupMAE** (Eq. 9, bag-of-words weight 1) on 10 million tokens
   of the domains: experiments/mae-from-scratch.md, seed 0.
2. **Stage 1**: in-batch negatives on {own["stage1"]["limit"]:,} pairs, {own["stage1"]["steps"]} updates of 32, from a
   calibrated OT bias, with log(1 + ReLU) and without a regulariser.
3. **Stage 2**: {own["stage2"]["steps"]} updates of {own["stage2"]["batch_size"]} queries with
   {own["stage2"]["negatives"]} hard negatives each, mined with stage 1 among {own["pairs"]:,} passages.
4. **Stage 3**: the same with the teacher's scores, BM25's list and the embedded default model's, fused.

Each stage continues the one before. Stored is {chosen.removeprefix("small.")}, the best on the dev pairs (nDCG@10 of
900 held-out pairs among 1,773 passages):

| | [CLS] | OT | sum |
|:--|--:|--:|--:|
{rows}

```sh
python experiments/dupmae_small.py --data DATA --output runs/mae-from-scratch
```

## Data
The text of pre-training: the sources below, and the documents, without queries and judgements, of SciFact, NPL
(vaswani), Cranfield and CACM. The pairs are those of textbooks and FAQs; the four collections are out of domain for
them. English only.

{sources_table(sources.partition("## Caveats")[0])}
| {BOOKS.replace("; counted in the document frequencies alone", "; read in pre-training")} |

## Scores
The packaged files, titles and texts, exhaustive search with OT weights before their quantisation (mae_readouts.py).
BM25 is Anserini's; the embedded default is hybrid, as its own card has it.

{scores}

## Limits
English; at most 128 word pieces of a document and 64 of a query, whose vocabulary is small: rare words fall into
pieces. For your own data use the default, or fine-tune. Licence of the weights: Apache-2.0; the licences and
attributions of the data are above.
"""


def measured(records: Path, references: Sequence[Record]) -> str:
    """Markdown: a table for each measure, of the read-outs in ``records`` beside BM25 and the embedded default."""
    found = {
        p.stem.rpartition(".")[2]: read_json(p)["sets"]
        for p in sorted(records.glob(f"readout.{SMALL}.*.json"))
    }
    by_row = {r["row"]: r["sets"] for r in references}
    tables = []
    for measure in MEASURES:
        lines = [[measure, *found]]
        for row, title in BESIDE.items():
            scores = [list(by_row[row][name]["scores"].values())[-1] for name in found]
            lines.append([title, *(f"{one[measure]:.4f}" for one in scores)])
        for part, title in PARTS.items():
            values = [sets[name]["scores"][part][measure] for name, sets in found.items()]
            lines.append([f"{SMALL}, {title}", *(f"{value:.4f}" for value in values)])
        tables.append(table(lines))
    return "\n\n".join(tables)


def read_out(args: argparse.Namespace, folder: Path) -> None:
    """Read out the stored model on each public collection, unless its record is there."""
    settings = mae_from_scratch.read_settings()
    digest = folder_digest(folder)
    for name in settings["collections"]:
        record = args.output / "records" / f"readout.{SMALL}.{name}.json"
        if record.is_file() and read_json(record)["settings"] == {"digest": digest}:
            continue
        words = [
            "--model",
            str(folder),
            "--record",
            str(record),
            "--data",
            str(args.data),
            "--sets",
            name,
        ]
        words += ["--prepared", str(args.output / "data"), "--measures", *MEASURES]
        if mae_readouts.main(
            [*words, "--threads", "1", "--settings", json.dumps({"digest": digest})]
        ):
            raise DupmaeError(f"{folder}: not read out on {name}")


def run(args: argparse.Namespace) -> None:
    """Run the steps that are left, store the model with its card, print its folder and size."""
    words = [
        "--data",
        str(args.data),
        "--output",
        str(args.output),
        "--jobs",
        str(args.jobs),
        "--only",
        *STEPS,
    ]
    if mae_from_scratch.main(words):
        raise DupmaeError("a step failed; run the same command to continue")
    records = args.output / "records"
    target = args.output / SMALL
    dev = stage_scores(records, "dev")
    stages = {step: dev[step] for step in STAGES}
    chosen = max(stages, key=lambda step: stages[step]["sum"])
    source = args.output / "runs" / chosen
    size = store(
        source, target, "", {"step": chosen, **read_json(source / "training.json")}, MOST_BYTES
    )
    read_out(args, target)
    sources = sources_text(args.data / "SOURCES.md")
    tables = measured(records, read_records(RECORDS))
    text = card(chosen, mae_from_scratch.read_settings(), stages, sources, tables)
    with atomic_write(target / "README.md") as f:
        f.write(text)
    print(json.dumps({"model": str(target), "bytes": size + len(text.encode()), "step": chosen}))


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with pretrain/, pairs/ and SOURCES.md"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of mae_from_scratch.py")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "dupmae_small.py", "; run the same command to continue")


if __name__ == "__main__":
    sys.exit(main())
