"""The model inside the package: trained by the recipe `embedded`, stored in float16 with its card.

    python experiments/embedded.py --pairs DATA/pairs/train.jsonl.gz --sources DATA/SOURCES.md --output runs/embedded

Killed, it goes on. OUTPUT/model is like dupmae_ir/default_model; to ship it, put it there, measure it
(`experiments/systems.py --budget embedded`, its records into experiments/records/embedded), and run this again: nothing
is trained twice, and the card has the new scores.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from publish import MINILM, sources_table, sources_text, store
from records import Record, read_records
from systems import read_json
from tables import score_tables

from dupmae_ir.console import guarded
from dupmae_ir.finetune.stages import run_stages
from dupmae_ir.models.checkpoints.loading import load_model

RECIPE = "embedded"
STEPS = ("held", "stage1")
RECORDS = Path(__file__).with_name("records") / "embedded"
MEASURES = ("nDCG@10", "R@100")


def train(pairs: Path, folder: Path, quiet: bool) -> dict[str, Any]:
    """Run the recipe in ``folder``; what its steps wrote about themselves, by step."""
    run_stages(RECIPE, str(folder), {"pairs": [str(pairs)]}, quiet)
    return {name: read_json(folder / name / "training.json") for name in STEPS}


def card(made: dict[str, Any], sources: str, records: list[Record]) -> str:
    """README.md of the folder."""
    held, stage = (made[name] for name in STEPS)
    batch = held["settings"]["batch_size"]
    return f"""# The embedded model

A 6-layer, 384-wide BERT with BERT's uncased vocabulary that gives both parts of DupMAE's representation in one pass:
a [CLS] vector of 384 numbers and weights over 30,522 word pieces. 23 million parameters, float16, trained in
about an hour of one CPU core so that the toolkit works out of the box. It is not one of the papers' models, which are
twelve layers deep and trained on MS MARCO.

## How it was made
1. **Start**: {MINILM}, which was trained to be
   read by the mean of its tokens and has no masked-LM head.
2. **Held**: {held["steps"]} updates of {batch} pairs in which [CLS] learns to say what that mean says: the distance
   from the start's unit vectors at length sqrt(20), and a small share of the contrastive loss.
3. **Stage 1**: a head is calibrated in closed form (`models/checkpoints/calibrated_head.py`, no training); then
   {stage["steps"]} updates of {stage["settings"]["batch_size"]} pairs under the in-batch contrastive loss (Eq. 13) of
   DupMAE's similarity (Eq. 12), [CLS] still held.

There is no masked-auto-encoder pre-training in it: with what two cores can read in minutes none helped
(docs/experiments.md).

```sh
pip install 'dupmae-ir[train]'
dupmae-ir finetune --recipe embedded --set pairs=train.jsonl.gz --output runs/embedded
```

`experiments/embedded.py` does that and stores the result in float16; `training.json` beside this file holds the
settings, the digest of the pairs and the losses of both steps.

## Data
Query-passage pairs made automatically from openly licensed text (headings, glossaries, review questions, FAQs), of
which {held["settings"]["limit"]:,} and {stage["settings"]["limit"]:,} were drawn.

{sources_table(sources)}

Nothing of the collections below was trained on; `dev` are pairs of the same sources, of documents left out.

## What it scores
Titles and texts, float32, 256 word pieces a document. BM25 is Anserini's; MiniLM is the start as its authors use it;
`demo` is the embedded collection. `*`: p < 0.05 against BM25 (paired t-test over queries, Holm's correction over a
table).

<!-- scores: made by `make docs` -->

{scores(records) if records else "Not yet."}

<!-- end of scores -->

## Limits
English only; passages up to 256 word pieces and queries up to 64 (it was trained with 128 and 32). Most of the training
text is about science, medicine and the social sciences. The weights are for trying the toolkit; for a paper, train on
your data or use a released checkpoint.

Licence: Apache-2.0, as its starting point; the data's attributions are above.
"""


def scores(records: list[Record]) -> str:
    """Markdown: the model beside BM25 and its start, a table a measure. In the package's card `make docs` renews it."""
    return "\n\n".join(score_tables(records, "systems", "bm25", MEASURES))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True, help="query-passage pairs to train on")
    parser.add_argument("--sources", type=Path, required=True, help="SOURCES.md of the pairs, for the card")
    parser.add_argument("--records", type=Path, default=RECORDS, help="scores for the card")
    parser.add_argument("--output", type=Path, required=True, help="the steps' models, and `model`")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "embedded.py")


def run(args: argparse.Namespace) -> None:
    sources = sources_text(args.sources)
    records = read_records(args.records) if args.records.is_dir() else []
    made = train(args.pairs, args.output, args.quiet)
    loaded = load_model(args.output / STEPS[-1])
    size = store(loaded, args.output / "model", card(made, sources, records), made)
    print(json.dumps({"model": str(args.output / "model"), "bytes": size}))


if __name__ == "__main__":
    sys.exit(main())
