"""The two collections of mae_targets.py, in BEIR's layout.

    python experiments/mae_target_data.py DATA FOLDER QUESTIONS

``FOLDER/stdlib`` is the documentation of the running Python's standard library with the questions of the demonstration.
``FOLDER/squad`` has the sentences of DATA/pairs_extra/squad_sentences.jsonl.gz and ``QUESTIONS`` of its questions,
chosen at random; a sentence that answers several questions is one document.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
from pathlib import Path

from dupmae_ir.collections.prepared import QUERIES, write_qrels, write_records
from dupmae_ir.collections.stdlib import write_beir
from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.io.publishing import move_into_place, write_json

SQUAD = Path("pairs_extra") / "squad_sentences.jsonl.gz"
RECORD = "collections.json"


def prepare(data: Path, folder: Path, questions: int) -> dict[str, dict[str, int]]:
    """Write both collections, completely or not at all. Returns their numbers of documents and queries.

    Raises :class:`InputError` if the questions of SQuAD are not in ``data``.
    """
    aside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "stdlib").mkdir(parents=True)
    (aside / "squad").mkdir()
    counts = {
        "stdlib": write_beir(aside / "stdlib"),
        "squad": write_squad(data / SQUAD, aside / "squad", questions),
    }
    write_json(aside / RECORD, counts)
    move_into_place(aside, folder)
    return counts


def write_squad(source: Path, folder: Path, questions: int) -> dict[str, int]:
    """Write the sentences of ``source`` and a sample of its questions. Returns the numbers of documents and queries."""
    if not source.is_file():
        raise InputError(
            f"{source}: no such file; see experiments/README.md for the layout of --data"
        )
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in lines]
    numbers: dict[str, str] = {}
    for pair in pairs:
        numbers.setdefault(pair["positive"], str(len(numbers)))
    chosen = random.Random(0).sample(pairs, min(questions, len(pairs)))

    documents = ({"_id": i, "title": "", "text": text} for text, i in numbers.items())
    write_records(folder / "corpus.jsonl", documents)
    queries = ({"_id": str(n), "text": pair["query"]} for n, pair in enumerate(chosen))
    write_records(folder / QUERIES, queries)
    answers = {str(n): {numbers[pair["positive"]]: 1} for n, pair in enumerate(chosen)}
    write_qrels(folder, "test", answers)
    return {"documents": len(numbers), "queries": len(chosen)}


def main(argv: list[str]) -> int:
    """Read the arguments and prepare. Returns the exit status."""
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    data = Path(argv[0])
    folder = Path(argv[1])
    questions = int(argv[2])
    return guarded(
        lambda: print(json.dumps(prepare(data, folder, questions))), "mae_target_data.py"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
