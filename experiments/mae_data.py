"""The pairs of mae_from_scratch.py and its dev collection: ``python experiments/mae_data.py DATA FOLDER SETTINGS``.

``SETTINGS`` is a JSON object: ``left_out``, kinds of pairs that are not used; ``dev``, the numbers of ``queries`` and
of ``others``, passages that answer none of them; ``mined``, the pairs of a sample; and ``collections``, whose files are
checked.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.io.publishing import move_into_place, sha256_file, write_json

FILES = ("train", "dev", "corpus")
RECORD = "data.json"


def prepare(data: Path, folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Write to ``folder``, completely or not at all: ``pairs.jsonl``, a sample of them ``mined.jsonl``, the BEIR folder
    ``dev`` and a record.

    Returns the numbers of pairs, dev queries and dev passages. Raises :class:`InputError` for a missing file.
    """
    sources = [data / "pairs" / f"{name}.jsonl.gz" for name in FILES]
    sources += [data / name / "corpus.jsonl" for name in settings["collections"]]
    missing = [path for path in sources if not path.is_file()]
    if missing:
        raise InputError(
            f"{missing[0]}: no such file; see experiments/README.md for the layout of --data"
        )
    aside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    left_out = set(settings["left_out"])
    train, dev, pool = (list(_rows(path)) for path in sources[: len(FILES)])
    pairs = [row for row in train if row["kind"] not in left_out]
    _write(aside / "pairs.jsonl", pairs)
    _write(
        aside / "mined.jsonl", random.Random(0).sample(pairs, min(settings["mined"], len(pairs)))
    )
    queries = [row for row in dev if row["kind"] not in left_out]
    passages = _write_dev(aside / "dev", queries, pool, settings["dev"])
    counts = {
        "pairs": len(pairs),
        "dev_queries": min(len(queries), settings["dev"]["queries"]),
        "dev": passages,
    }
    digests = {path.relative_to(data).as_posix(): sha256_file(path) for path in sources}
    write_json(aside / RECORD, {"settings": dict(settings), "counts": counts, "inputs": digests})
    move_into_place(aside, folder)
    return counts


def _write_dev(
    folder: Path,
    pairs: list[dict[str, Any]],
    pool: list[dict[str, Any]],
    amounts: Mapping[str, int],
) -> int:
    """Write a BEIR folder of sampled dev pairs, whose passages are mixed with others. Returns the passages."""
    chance = random.Random(0)
    chosen = chance.sample(pairs, min(amounts["queries"], len(pairs)))
    answers = {row["positive"]["id"] for row in chosen}
    rest = [p for p in pool if p["_id"] not in answers]
    others = {p["_id"] for p in chance.sample(rest, min(amounts["others"], len(rest)))}
    passages = [p for p in pool if p["_id"] in answers | others]
    unknown_answers = answers - {p["_id"] for p in passages}
    if unknown_answers:
        raise InputError(
            f"pairs/corpus.jsonl.gz: has no passage {min(unknown_answers)}, which a dev pair names"
        )
    (folder / "qrels").mkdir(parents=True)
    _write(folder / "corpus.jsonl", passages)
    _write(
        folder / "queries.jsonl",
        ({"_id": str(i), "text": row["query"]} for i, row in enumerate(chosen)),
    )
    judged = "".join(f"{i}\t{row['positive']['id']}\t1\n" for i, row in enumerate(chosen))
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + judged, encoding="utf-8"
    )
    return len(passages)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as f:
        yield from map(json.loads, f)


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main(argv: list[str]) -> int:
    """Read the arguments and prepare. Returns the exit status."""
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    data = Path(argv[0])
    folder = Path(argv[1])
    settings = json.loads(argv[2])
    return guarded(lambda: print(json.dumps(prepare(data, folder, settings))), "mae_data.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
