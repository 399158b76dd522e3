"""Pairs of a query and a passage, from files in the layouts of training libraries.

The kind of file is recognised by its contents: JSON lines, a JSON array, CSV and tab-separated text (all gzipped or
not), Parquet, a folder that ``datasets`` saved, a folder in BEIR's layout. The layout is recognised by the names of the
fields of the first row: :data:`QUERY_FIELDS`, :data:`POSITIVE_FIELDS`, :data:`NEGATIVE_FIELDS` and
:data:`LABEL_FIELDS` contain the names that this package, FlagEmbedding, sentence-transformers, Tevatron and DPR use.
Tab-separated text without a header is query and passage, or MS MARCO's triples of query, positive and negative.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import itertools
import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from dupmae_ir.console import one_line, say
from dupmae_ir.device import need_packages
from dupmae_ir.errors import InputError
from dupmae_ir.finetune.data import Passages, passage_object
from dupmae_ir.finetune.formats import array_items, beir_queries, document_of, is_passage, judged
from dupmae_ir.io.collections import is_dataset_folder
from dupmae_ir.io.in_memory import record_of
from dupmae_ir.io.lines import json_records, numbered_lines, open_text
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.sources import dataset_rows
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Document

QUERY_FIELDS = ("query", "question", "anchor", "sentence1")
POSITIVE_FIELDS = (
    "positive",
    "pos",
    "positive_passages",
    "positive_ctxs",
    "answer",
    "passage",
    "document",
    "context",
    "sentence2",
)
NEGATIVE_FIELDS = (
    "negatives",
    "negative",
    "neg",
    "negative_passages",
    "hard_negative_ctxs",
    "negative_ctxs",
)
NUMBERED_NEGATIVE = re.compile(r"negative_\d+")
LABEL_FIELDS = ("label", "score", "labels", "similarity")
OTHER_FIELDS = ("id", "_id", "qid", "query_id", "kind", "source")
"""Fields that are read or mean nothing to training, and are not reported as unused."""
MIN_POSITIVE_LABEL = 0.5
"""A pair with a higher label, from 0 to 1, is a positive one; the others are negatives of their query."""
EXAMPLE_CHARACTERS = 60
_SPLITS = ("train", "dev", "validation", "test")


class Pair(NamedTuple):
    """A query, a passage that answers it, passages that do not, and the kind of pair ("" if not given)."""

    query: str
    positive: Document
    negatives: tuple[Document, ...] = ()
    kind: str = ""


class PairRow(NamedTuple):
    """A row of a file with its fields by name; ``where``: the file and the line, for errors."""

    where: str
    fields: Mapping[str, Any]


class Layout(NamedTuple):
    """Which fields of a file are what."""

    query: str
    positive: str
    negatives: tuple[str, ...]
    label: str | None
    unused: tuple[str, ...]

    def __str__(self) -> str:
        names = [self.query, self.positive, *self.negatives]
        if self.label:
            names.append(self.label)
        text = ", ".join(names)
        if self.unused:
            text += f" (not used: {', '.join(self.unused)})"
        return text


def read_pairs(path: str | Path, split: str = "train", quiet: bool = True) -> list[Pair]:
    """Read the pairs of a file or folder in any of the layouts of this module.

    Args:
        path: file or folder.
        split: split of a folder in BEIR's layout.
        quiet: do not print what was recognised and the first pair.

    Raises :class:`InputError` with file and line for what is no pair, and with the names of the fields for a layout
    that is unknown or ambiguous.
    """
    path = Path(path)
    source = _open(path, split)
    first = next(source.rows, None)
    if first is None:
        raise InputError(f"{path}: no pairs in it")
    rows = itertools.chain([first], source.rows)
    layout = _layout(first)
    if layout.label:
        pairs = _labelled_pairs(rows, layout)
    else:
        pairs = [pair for row in rows for pair in _pairs(row, layout)]
    if not pairs:
        raise InputError(f"{path}: no pair in it has a passage that answers its query")
    example = f"{_shown(pairs[0].query)} -> {_shown(pairs[0].positive.joined())}"
    say(f"{path}: {source.kind} with {layout}; first pair: {example}", quiet)
    return pairs


def _shown(text: str) -> str:
    return repr(one_line(text, EXAMPLE_CHARACTERS))


# ---- Files


class Source(NamedTuple):
    """The rows of a file, and its kind for messages."""

    kind: str
    rows: Iterator[PairRow]


def _open(path: Path, split: str) -> Source:
    """The rows of a file or folder, by its contents."""
    if path.is_dir():
        if is_dataset_folder(path):
            return Source("a dataset", _numbered(path, dataset_rows(path)))
        if (path / "qrels").is_dir():
            return Source(f"BEIR's layout, split {split}", _beir_rows(path, split))
        raise InputError(
            f"{path}: neither a saved dataset nor a folder in BEIR's layout (with qrels/); name a file"
        )
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if _is_parquet(path):
        return Source("Parquet", _numbered(path, _parquet_rows(path)))
    number, line = next(numbered_lines(path))
    beginning = line.lstrip()[:1]
    if beginning == "[":
        return Source("a JSON array", _array_rows(path))
    if beginning == "{" or _ends(path, ".jsonl"):
        rows = (PairRow(where, record) for where, record in json_records(path))
        return Source("JSON lines", rows)
    if _ends(path, ".csv") or ("\t" not in line and "," in line):
        return Source("CSV", _csv_rows(path))
    return _tab_separated(path, number, line)


def _ends(path: Path, ending: str) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(ending)


def _numbered(path: Path, rows: Iterable[Mapping[str, Any]]) -> Iterator[PairRow]:
    for number, row in enumerate(rows):
        yield PairRow(f"{path}: row {number}", record_of(row) or {})


def _is_parquet(path: Path) -> bool:
    try:
        with open(path, "rb") as f:
            return f.read(4) == b"PAR1"
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror or e}") from None


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    need_packages(f"{path} is a Parquet file; reading it", ["pyarrow"], "datasets")
    library: Any = importlib.import_module("pyarrow.parquet")
    try:
        with library.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (OSError, ValueError) as e:  # pyarrow's own errors are ValueErrors
        raise InputError(f"{path}: cannot be read as Parquet: {one_line(e, 200)}") from None


def _array_rows(path: Path) -> Iterator[PairRow]:
    for number, (line, item) in enumerate(array_items(path)):
        where = f"{path}:{line}: item {number}"
        if not isinstance(item, dict):
            raise InputError(f"{where}: expected an object, got {json.dumps(item)[:40]}")
        yield PairRow(where, item)


def _csv_rows(path: Path) -> Iterator[PairRow]:
    """The rows of a CSV file, whose first line names the columns."""
    # csv splits lines itself, because cells can contain line breaks.
    with open_text(path, newline="") as f:
        reader = csv.reader(f, strict=True)
        try:
            names = [name.strip() for name in next(reader)]
            if not set(names) & {*QUERY_FIELDS, *POSITIVE_FIELDS}:
                raise InputError(
                    f"{path}:1: the first line must name the columns, such as query,positive; got {','.join(names)}"
                )
            for cells in reader:
                where = f"{path}:{reader.line_num}"
                if not cells:
                    continue
                if len(cells) != len(names):
                    raise InputError(
                        f"{where}: {len(cells)} cells, expected {len(names)} as in the first line"
                    )
                yield PairRow(where, dict(zip(names, cells, strict=True)))
        except csv.Error as e:
            raise InputError(f"{path}:{reader.line_num}: not CSV: {e}") from None
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as e:
            raise InputError(f"{path}: not complete UTF-8 text: {e}") from None


def _tab_separated(path: Path, first_number: int, first: str) -> Source:
    """Tab-separated text with a header, of query and passage, or of MS MARCO's triples."""
    names = [cell.strip() for cell in first.split("\t")]
    if set(names) & set(QUERY_FIELDS) and set(names) & set(POSITIVE_FIELDS):
        return Source("tab-separated text", _tab_rows(path, names, first_number))
    if len(names) == 3:
        if all(name.isdecimal() for name in names):
            raise InputError(
                f"{path}:{first_number}: these are ids; make pairs of them with finetune.convert, `format` "
                "msmarco-triples"
            )
        return Source("tab-separated triples", _tab_rows(path, ["query", "positive", "negative"]))
    return Source("tab-separated text", _tab_rows(path, ["query", "positive"]))


def _tab_rows(path: Path, names: Sequence[str], header: int = 0) -> Iterator[PairRow]:
    for number, line in numbered_lines(path):
        if number == header:
            continue
        cells = line.split("\t")
        where = f"{path}:{number}"
        if len(cells) != len(names) or not all(cell.strip() for cell in cells):
            expected = "<TAB>".join(names) if header or len(names) == 3 else "query<TAB>passage"
            raise InputError(f"{where}: expected {expected}, got {len(cells)} column(s)")
        yield PairRow(where, dict(zip(names, cells, strict=True)))


def _beir_rows(folder: Path, split: str) -> Iterator[PairRow]:
    """A row for each judgement with a grade above 0 of a folder in BEIR's layout."""
    if not (folder / "qrels" / f"{split}.tsv").is_file():
        splits = [name for name in _SPLITS if (folder / "qrels" / f"{name}.tsv").is_file()]
        known = ", ".join(splits) or "none"
        raise InputError(f"{folder}: no judgements qrels/{split}.tsv; splits here: {known}")
    qrels = read_qrels(folder, split)
    queries = {query.qid: query.text for query in read_topics(beir_queries(folder))}
    judgements = list(judged(qrels, queries, str(folder)))
    # Positives of judgements are ids.
    positives = map(str, itertools.chain.from_iterable(row.positives for row in judgements))
    passages = Passages(folder, set(positives))
    for row in judgements:
        if row.query is None:
            raise InputError(f"{row.where}: judged, but not in queries.jsonl")
        for docid in row.positives:
            passage = passage_object(passages[str(docid)])
            yield PairRow(row.where, {"query": row.query, "positive": passage})


# ---- Layouts


def _layout(row: PairRow) -> Layout:
    """Which fields are what, by the names in the first row. Raises :class:`InputError` for an unknown layout."""
    names = list(row.fields)
    if "ranks" in names and "positives" in names:
        raise InputError(f"{row.where}: mined negatives; give the file as `mined`, not as pairs")
    if "qid" in names and isinstance(row.fields.get("neg"), dict):
        raise InputError(
            f"{row.where}: negatives by id; make a mined file of them with finetune.convert, `format` "
            "st-hard-negatives"
        )
    query = _only_field(row, QUERY_FIELDS, "query")
    positive = _only_field(row, POSITIVE_FIELDS, "positive")
    negatives = _negative_fields(row)
    label = None
    if not negatives and not isinstance(row.fields[positive], list):
        label = next((name for name in LABEL_FIELDS if name in names), None)
    used = {query, positive, *negatives, label, *OTHER_FIELDS}
    unused = tuple(name for name in names if name not in used)
    return Layout(query, positive, tuple(negatives), label, unused)


def _negative_fields(row: PairRow) -> list[str]:
    named = [name for name in NEGATIVE_FIELDS if name in row.fields]
    return named + [name for name in row.fields if NUMBERED_NEGATIVE.fullmatch(name)]


def _only_field(row: PairRow, names: Sequence[str], what: str) -> str:
    """The one field that has one of ``names``."""
    present = [name for name in names if name in row.fields]
    if len(present) == 1:
        return present[0]
    if present:
        raise InputError(
            f"{row.where}: {' and '.join(map(repr, present))} could both be the {what}; keep one of them"
        )
    known = ", ".join(names[1:])
    fields = ", ".join(row.fields) or "none"
    raise InputError(f'{row.where}: no "{what}" (or {known}) among the fields, which are: {fields}')


def _pairs(row: PairRow, layout: Layout) -> Iterator[Pair]:
    """A pair for each positive of a row."""
    query = _query(row, layout)
    positives = _passages(row, layout.positive)
    if not positives:
        raise InputError(f'{row.where}: no "{layout.positive}"')
    negatives: list[Document] = []
    # The first row, which decides the layout, may have no negatives.
    for name in _negative_fields(row):
        negatives += _passages(row, name)
    kind = str(row.fields.get("kind") or "")
    for positive in positives:
        yield Pair(query, positive, tuple(negatives), kind)


def _query(row: PairRow, layout: Layout) -> str:
    query = row.fields.get(layout.query)
    if not isinstance(query, str) or not query.strip():
        raise InputError(f'{row.where}: expected a non-empty "{layout.query}"')
    return query


def _passages(row: PairRow, name: str) -> list[Document]:
    """The passages in a field: one, a list, or none."""
    value = row.fields.get(name)
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    return [_passage(item, f"{row.where}: {name!r}") for item in values]


def _passage(value: object, where: str) -> Document:
    if isinstance(value, str) and value.strip():
        return Document("", value)
    if is_passage(value):
        passage = document_of(cast("Mapping[str, Any]", value))
        if passage.joined().strip():
            return passage
    raise InputError(
        f'{where}: a passage must be a non-empty text or an object with "text" (and "title", "id")'
    )


def _labelled_pairs(rows: Iterable[PairRow], layout: Layout) -> list[Pair]:
    """The pairs with a label above :data:`MIN_POSITIVE_LABEL`, with the other passages of their query as negatives."""
    assert layout.label is not None
    positives: list[Pair] = []
    negatives: dict[str, list[Document]] = {}
    for row in rows:
        label = _label(row.fields.get(layout.label), f"{row.where}: {layout.label!r}")
        for pair in _pairs(row, layout):
            if label > MIN_POSITIVE_LABEL:
                positives.append(pair)
            else:
                negatives.setdefault(pair.query, []).append(pair.positive)
    return [pair._replace(negatives=tuple(negatives.get(pair.query, ()))) for pair in positives]


def _label(value: object, where: str) -> float:
    """A label from 0 to 1; in CSV it is a text."""
    try:
        label = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        label = -1.0
    if not 0 <= label <= 1:
        raise InputError(f"{where}: a label must be a number from 0 to 1, got {value!r}")
    return label


def read_dev_pairs(path: str | Path, quiet: bool = True) -> list[Pair]:
    """The pairs of a file, or of the split ``dev``, ``validation`` or ``test`` of a folder in BEIR's layout."""
    for split in _SPLITS[1:]:
        if (Path(path) / "qrels" / f"{split}.tsv").is_file():
            return read_pairs(path, split, quiet)
    return read_pairs(path, quiet=quiet)


def cap_kinds(pairs: Sequence[Pair], caps: Mapping[str, int], seed: int = 0) -> list[Pair]:
    """A random sample of at most ``caps[kind]`` pairs of each named kind, and all pairs of other kinds, in order."""
    kinds = {pair.kind for pair in pairs}
    unknown = set(caps) - kinds
    if unknown:
        raise InputError(
            f"no pairs of kind {sorted(unknown)[0]!r}; kinds here: {', '.join(sorted(kinds))}"
        )
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)
    taken: Counter[str] = Counter()
    sample = []
    for i in order:
        kind = pairs[i].kind
        if taken[kind] < caps.get(kind, len(pairs)):
            taken[kind] += 1
            sample.append(i)
    # In the order of the file; the shuffle has only chosen which pairs to keep.
    return [pairs[i] for i in sorted(sample)]
