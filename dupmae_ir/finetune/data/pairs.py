"""Query-passage pairs from files, and which of them make a batch."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.types import Document


class Pair(NamedTuple):
    """A query, a passage that answers it, passages that do not, and the kind of pair ("" if not given)."""

    query: str
    positive: Document
    negatives: tuple[Document, ...] = ()
    kind: str = ""


def read_pairs(path: str | Path) -> list[Pair]:
    """Read pairs from JSON lines or from TSV of query and passage, gzipped or plain.

    A JSON line is ``{"query", "positive", "negatives"?, "kind"?}``; a passage is a text or ``{"id"?, "title"?,
    "text"}``. Raises :class:`InputError` with file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file of pairs")
    parse = _from_tsv if path.name.removesuffix(".gz").endswith(".tsv") else _from_json
    opener: Any = gzip.open if path.suffix == ".gz" else open
    pairs: list[Pair] = []
    try:
        with opener(path, "rt", encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                if line.strip():
                    pairs.append(parse(line, f"{path}:{number}"))
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as e:
        raise InputError(f"{path}: not readable as UTF-8 text: {e}") from None
    if not pairs:
        raise InputError(f"{path}: contains no pairs")
    return pairs


def cap_kinds(pairs: Sequence[Pair], most: dict[str, int], seed: int = 0) -> list[Pair]:
    """A random sample of at most ``most[kind]`` pairs of each named kind, and all pairs of other kinds, in order."""
    unknown = set(most) - {p.kind for p in pairs}
    if unknown:
        known = ", ".join(sorted({p.kind for p in pairs}))
        raise InputError(f"no pairs of kind {sorted(unknown)[0]!r}; kinds here: {known}")
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)
    taken: Counter[str] = Counter()
    kept = []
    for i in order:
        kind = pairs[i].kind
        if taken[kind] < most.get(kind, len(pairs)):
            taken[kind] += 1
            kept.append(i)
    return [pairs[i] for i in sorted(kept)]


class TopicalBatches:
    """Batches of rows, made of small groups of neighbouring passages, in an order given by the seed and the epoch.

    Pairs are sorted by passage id (then file order) and cut into groups of ``group_size``; a batch is a random sample
    of groups. Passages of one chapter or article are thus hard in-batch negatives of each other, at no cost. With
    ``group_size`` 1, batches are random.
    """

    def __init__(self, pairs: Sequence[Pair], batch_size: int, group_size: int = 1, seed: int = 0) -> None:
        if not 1 <= group_size <= batch_size <= len(pairs):
            raise UsageError(
                f"group size {group_size}, batch size {batch_size} and {len(pairs)} pairs do not fit: each must be "
                "at least 1 and at most the next"
            )
        self.pairs, self.batch_size, self.group_size, self.seed = pairs, batch_size, group_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch that the next iteration is for."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.pairs) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        rng = random.Random(f"{self.seed} {self.epoch}")
        order = sorted(range(len(self.pairs)), key=lambda i: (self.pairs[i].positive.docid, i))
        # Another offset each epoch, so that the groups differ.
        shift = rng.randrange(self.group_size)
        order = order[shift:] + order[:shift]
        groups = [order[i : i + self.group_size] for i in range(0, len(order), self.group_size)]
        rng.shuffle(groups)
        flat = [i for group in groups for i in group]
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield flat[start : start + self.batch_size]


def _from_json(line: str, where: str) -> Pair:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where}: not valid JSON: {e}") from None
    if not isinstance(row, dict) or not isinstance(row.get("query"), str) or not row["query"].strip():
        raise InputError(f'{where}: expected an object with a non-empty "query" and a "positive"')
    if "positive" not in row:
        raise InputError(f'{where}: no "positive"')
    negatives = tuple(_passage(d, where) for d in row.get("negatives", ()))
    return Pair(row["query"], _passage(row["positive"], where), negatives, str(row.get("kind", "")))


def _passage(value: Any, where: str) -> Document:
    if isinstance(value, str) and value.strip():
        return Document("", value)
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        passage = Document(str(value.get("id", "")), value["text"], value.get("title") or "")
        if passage.joined().strip():
            return passage
    raise InputError(f'{where}: a passage must be a non-empty text or an object with "text" (and "title", "id")')


def _from_tsv(line: str, where: str) -> Pair:
    cells = line.rstrip("\r\n").split("\t")
    if len(cells) != 2 or not all(c.strip() for c in cells):
        raise InputError(f"{where}: expected query<TAB>passage, got {len(cells)} column(s)")
    return Pair(cells[0], Document("", cells[1]))
