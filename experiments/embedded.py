"""Train the model inside the package with the recipe `embedded` and store it in float16 with its card.

    python experiments/embedded.py --pairs DATA/pairs/train.jsonl.gz --sources DATA/SOURCES.md --output runs/embedded

If interrupted, run the same command to resume. OUTPUT/model has the layout of dupmae_ir/default_model. To ship it, copy
it there, measure it (`experiments/systems.py --budget embedded`), copy the records to experiments/records/embedded, and
run this again: nothing is trained twice, and the card gets the new scores.
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
    """Run the recipe in ``folder``. Returns the contents of each step's training.json, by step."""
    run_stages(RECIPE, str(folder), {"pairs": [str(pairs)]}, quiet)
    return {name: read_json(folder / name / "training.json") for name in STEPS}


def settings_of(training: dict[str, Any]) -> dict[str, Any]:
    """The settings in a step's training.json; models trained before records had one form call them ``config``."""
    return training["settings"] if "settings" in training else training["config"]


def card(made: dict[str, Any], sources: str, records: list[Record]) -> str:
    """The model card, README.md of the folder; ``made``: training.json of each step."""
    held, stage = (made[name] for name in STEPS)
    batch, stage_batch = (settings_of(step)["batch_size"] for step in (held, stage))
    return f"""# The embedded model

A MiniLM encoder fine-tuned for DupMAE's two representations, [CLS] and OT. It was **not** pre-trained with a masked
autoencoder.

One forward pass of the 6-layer, 384-wide BERT (uncased vocabulary, 23 million parameters, stored in float16) gives a
[CLS] vector of 384 numbers and weights over 30,522 word pieces. It was trained in about an hour on one CPU core so that
the toolkit works out of the box. It is not one of the papers' models, which have twelve layers and are trained on MS
MARCO. BM25 and MiniLM fused are better on all four public collections measured (table in the project's README).

## How it was made
1. **Start**: {MINILM}. It was trained for mean pooling
   and has no masked-LM head.
2. **Held**: {held["steps"]} updates of {batch} pairs that regress [CLS] to the mean of the token vectors: the distance
   from the starting model's unit vectors at length sqrt(20), plus a small share of the contrastive loss.
3. **Stage 1**: a head is calibrated in closed form (`dupmae_ir/models/checkpoints/calibrated_head.py`, no training);
   then {stage["steps"]} updates of {stage_batch} pairs with the in-batch contrastive loss (Eq. 13) of
   DupMAE's similarity (Eq. 12), [CLS] still anchored.

Masked autoencoder pre-training is left out because it did not help at this budget (docs/experiments.md).

```sh
pip install 'dupmae-ir[train]'
dupmae-ir finetune --recipe embedded --set pairs=train.jsonl.gz --output runs/embedded
```

`experiments/embedded.py` runs this and stores the result in float16. `training.json` beside this file contains the
settings, the digest of the pairs and the losses of both steps.

## Data
Query-passage pairs made automatically from openly licensed text (headings, glossaries, review questions, FAQs), of
which {settings_of(held)["limit"]:,} and {settings_of(stage)["limit"]:,} were sampled for the two steps.

{sources_table(sources)}

None of the collections below was used in training. `dev` are pairs from the same sources but from held-out documents.

## Scores
Titles and texts, float32, 256 word pieces per document. BM25 is Anserini's; MiniLM is the starting model as its
authors use it; `demo` is the embedded collection. `*`: p < 0.05 against BM25 (paired t-test over queries, Holm's
correction over a table).

<!-- scores: made by `make docs` -->

{scores(records) if records else "Not measured yet."}

<!-- end of scores -->

## Limits
English only; passages of up to 256 word pieces and queries of up to 64 (it was trained with 128 and 32). Most of the
training text is about science, medicine and the social sciences. Use the weights to try the toolkit; for a paper, train
on your data or use a released checkpoint.

Licence: Apache-2.0, as the starting model; the data's attributions are above.
"""


def scores(records: list[Record]) -> str:
    """Markdown: the model beside BM25 and its starting model, one table per measure. `make docs` updates the card."""
    return "\n\n".join(score_tables(records, "systems", "bm25", MEASURES))


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True, help="query-passage pairs to train on")
    parser.add_argument("--sources", type=Path, required=True, help="SOURCES.md of the pairs, quoted in the card")
    parser.add_argument("--records", type=Path, default=RECORDS, help="records with the scores of the card")
    parser.add_argument("--output", type=Path, required=True, help="folder for the models of the steps and `model`")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "embedded.py")


def run(args: argparse.Namespace) -> None:
    """Train, store the model with its card, print its folder and size."""
    sources = sources_text(args.sources)
    records = read_records(args.records) if args.records.is_dir() else []
    made = train(args.pairs, args.output, args.quiet)
    loaded = load_model(args.output / STEPS[-1])
    size = store(loaded, args.output / "model", card(made, sources, records), made)
    print(json.dumps({"model": str(args.output / "model"), "bytes": size}))


if __name__ == "__main__":
    sys.exit(main())
