"""Make dupmae-small, the DupMAE inside the package: fine-tuned in stages from scratch, in 8 bits, with its card.

    python experiments/dupmae_small.py --data DATA --output runs/mae-from-scratch

runs the steps of mae_from_scratch.py that it needs, from the stored checkpoint of stage 1, and those that are done are
skipped. OUTPUT/dupmae-small is the stage with the best sum on the dev pairs. To ship it, copy it to
dupmae_ir/dupmae_small, measure it (`experiments/systems.py --budget embedded --rows dupmae-small`), copy the record to
experiments/records/embedded and those of the stages to experiments/records/mae-from-scratch, and run `make docs`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mae_from_scratch
from embedded import BOOKS, store
from mae_tables import stage_scores
from publish import sources_table, sources_text
from records import Record
from systems import read_json
from tables import score_tables

from dupmae_ir.console import guarded
from dupmae_ir.errors import DupmaeError
from dupmae_ir.models.names import SMALL

STAGES = ("small.stage1", "small.stage2", "small.stage3")
READ = tuple(f"readout.{stage}.dev" for stage in STAGES)
STEPS = ("data", "stage1.dupmae.seed0", *STAGES, "small.negatives", "small.opinions", *READ)
SHOWN = ("bm25", "embedded", SMALL)
MOST_BYTES = 8_000_000
MEASURES = ("nDCG@10", "R@100")


def card(chosen: str, settings: Mapping[str, Any], dev: Mapping[str, Mapping[str, float]], sources: str) -> str:
    """The model card, README.md of the folder, without scores on the collections.

    Args:
        chosen: step of the stored model.
        settings: of mae_from_scratch.toml.
        dev: step -> part -> nDCG@10 on the dev pairs.
        sources: text of SOURCES.md.
    """
    own = settings["small"]
    rows = "\n".join(
        f"| {step.removeprefix('small.')} | {' | '.join(f'{scores[p]:.4f}' for p in ('cls', 'ot', 'sum'))} |"
        for step, scores in dev.items()
    )
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
The packaged files, float32, titles and texts, through `dupmae-ir encode` and `search`. BM25 is Anserini's; the embedded
model is the default of this package. `*`: p < 0.05 against BM25 (paired t-test over queries, Holm's correction over a
table).

<!-- small_scores: made by `make docs` -->

Not measured yet.

<!-- end of small_scores -->

## Limits
English; at most 128 word pieces of a document and 64 of a query, whose vocabulary is small: rare words fall into
pieces. For your own data use the default, or fine-tune. Licence of the weights: Apache-2.0; the licences and
attributions of the data are above.
"""


def scores(records: list[Record]) -> str:
    """Markdown: the model beside BM25 and the embedded default, one table per measure."""
    shown = [r for r in records if r["row"] in SHOWN]
    return "\n\n".join(score_tables(shown, "systems", "bm25", MEASURES))


def run(args: argparse.Namespace) -> None:
    """Run the steps that are left, store the model with its card, print its folder and size."""
    words = ["--data", str(args.data), "--output", str(args.output), "--jobs", str(args.jobs), "--only", *STEPS]
    if mae_from_scratch.main(words):
        raise DupmaeError("a step failed; run the same command to continue")
    dev = stage_scores(args.output / "records", "dev")
    stages = {step: dev[step] for step in STAGES}
    chosen = max(stages, key=lambda step: stages[step]["sum"])
    source, target = args.output / "runs" / chosen, args.output / SMALL
    made = read_json(source / "training.json")
    text = card(chosen, mae_from_scratch.read_settings(), stages, sources_text(args.data / "SOURCES.md"))
    size = store(source, target, text, {"step": chosen, **made}, (), MOST_BYTES)
    print(json.dumps({"model": str(target), "bytes": size, "step": chosen}))


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with pretrain/, pairs/ and SOURCES.md")
    parser.add_argument("--output", type=Path, required=True, help="folder of mae_from_scratch.py")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "dupmae_small.py", "; run the same command to continue")


if __name__ == "__main__":
    sys.exit(main())
