"""Documents, queries, judgements, runs and training data as programs hold them.

A collection of rows is a list, a generator, a DataFrame of pandas or polars, an Arrow table or record batch, a Hugging
Face dataset, or a dataset of ir_datasets. A row is one of this package's tuples, a tuple, an object with named fields,
or a dictionary whose keys are named as in files of this package, BEIR, Pyserini, PyTerrier, ir_datasets or LangChain.
Rows are read one by one, so that a generator is never held in memory.

Ids are strings or integers, which become strings. A text is a string; in dictionaries and tables a missing one is
empty. Half of a surrogate pair, which no file can hold, becomes a question mark, as in files. An error names the
parameter and the row, counted from 0.
"""

from __future__ import annotations

import datetime
import numbers
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

from dupmae_ir.arguments import described, is_path, wrong_type
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import RecordReader, checked_docid, metadata_of
from dupmae_ir.io.lines import usable
from dupmae_ir.io.qrels import NO_SUBTOPIC, Judgements, read_qrels
from dupmae_ir.types import Document, Query

Table: TypeAlias = Any
"""A DataFrame, an Arrow table, a dataset: anything with rows that :func:`rows_of` reads."""

DOCUMENT_IDS = ("id", "_id", "docid", "doc_id", "docno")
DOCUMENT_TEXTS = ("text", "contents", "body", "passage", "page_content")
QUERY_IDS = ("qid", "query_id", "_id", "id")
QUERY_TEXTS = ("text", "query", "question", "title", "contents")
QUERY_IDS_OF_PAIRS = ("query_id", "query-id", "qid")
DOCUMENT_IDS_OF_PAIRS = ("doc_id", "docid", "docno", "corpus-id", "corpus_id")
GRADES = ("relevance", "rel", "label", "grade", "score")
SCORES = ("score",)
SUBTOPICS = ("subtopic", "subtopic_id", "iteration")

DOCUMENTS_EXPECTED = (
    "a file, a folder, or rows of documents (Document objects, dictionaries, a DataFrame)"
)
TEXTS_EXPECTED = "texts or a table of them"
QUERIES_EXPECTED = "a text, or rows of texts or topics (Query objects, dictionaries, a DataFrame)"
QRELS_EXPECTED = "a file, {query id: {document id: grade}}, or rows of judgements"
RUN_EXPECTED = (
    "a file, {query id: hits}, {query id: {document id: score}}, or rows with these fields"
)


# ---- Rows


class Rows(NamedTuple):
    """The rows of a collection; ``is_table`` if all have the same named columns."""

    values: Iterator[object]
    is_table: bool


def rows_of(data: object, name: str, expected: str, method: str = "") -> Rows:
    """The rows of a collection that is held in memory.

    Args:
        data: the collection.
        name: of the parameter, for errors.
        expected: what the parameter may be, for errors.
        method: of ir_datasets' datasets, which gives their rows.

    Raises :class:`UsageError` for anything else.
    """
    if data is None or isinstance(data, str | bytes | bytearray | int | float):
        raise wrong_type(name, expected, data)
    if method and hasattr(data, method):
        return Rows(iter(getattr(data, method)()), False)
    if hasattr(data, "iter_rows"):  # a DataFrame of polars
        return Rows(iter(cast("Any", data).iter_rows(named=True)), True)
    if hasattr(data, "itertuples"):  # a DataFrame of pandas
        return Rows(_pandas_rows(data), True)
    if hasattr(data, "to_batches"):  # a table of Arrow
        return Rows(_arrow_rows(cast("Any", data).to_batches()), True)
    if hasattr(data, "to_pylist"):  # a record batch or a column of Arrow
        return Rows(iter(cast("Any", data).to_pylist()), hasattr(data, "schema"))
    if isinstance(data, Mapping):
        splits = ", ".join(map(str, data))
        if all(hasattr(split, "column_names") for split in data.values()) and data:
            raise UsageError(f"`{name}`: has the splits {splits}; give one of them")
        raise wrong_type(name, expected, data)
    try:
        rows = iter(cast("Iterable[object]", data))
    except TypeError:  # also of an array without dimensions, which is an iterable
        raise wrong_type(name, expected, data) from None
    # Datasets of Hugging Face are iterables of dictionaries.
    return Rows(rows, hasattr(data, "column_names"))


TABLE_ATTRIBUTES = (
    "iter_rows",
    "itertuples",
    "to_batches",
    "to_pylist",
    "column_names",
    "docs_iter",
)
"""Attributes of the tables of other libraries, by which :func:`rows_of` knows them."""


def is_plain(data: object) -> TypeGuard[Iterable[object]]:
    """Whether ``data`` is an iterable of rows, and no dictionary and no table or dataset of another library."""
    if isinstance(data, Mapping | bytes) or any(hasattr(data, name) for name in TABLE_ATTRIBUTES):
        return False
    try:
        iter(cast("Iterable[object]", data))
    except TypeError:
        return False
    return True


def _pandas_rows(frame: Any) -> Iterator[dict[str, object]]:
    names = [str(name) for name in frame.columns]
    for values in frame.itertuples(index=False, name=None):
        yield dict(zip(names, values, strict=True))


def _arrow_rows(batches: Iterable[Any]) -> Iterator[object]:
    for batch in batches:
        yield from batch.to_pylist()


def record_of(row: object) -> dict[str, object] | None:
    """The named values of a row, as Python's own types; None for a row without names.

    A missing value of a table (NaN, NaT, NA) is None, and a date is a string.
    """
    if isinstance(row, Mapping):
        fields = row
    elif hasattr(row, "_asdict"):  # a named tuple
        fields = row._asdict()
    else:
        return None
    return {str(name): plain(value) for name, value in fields.items()}


def plain(value: object) -> object:
    """A value of a table as one of Python: numpy's scalars and arrays, missing values and dates are converted."""
    if isinstance(value, str):
        return usable(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if hasattr(value, "tolist"):  # a scalar or an array of numpy
        converted = value.tolist()
        if type(converted) is not type(value):
            return plain(converted)
    if isinstance(value, float) and value != value:  # NaN
        return None
    return value


def _id(value: object, what: str, where: str) -> str:
    """An id as a string. Raises :class:`UsageError` for what is neither a string nor an integer."""
    if isinstance(value, str):
        return usable(value)
    if not isinstance(value, bool):
        try:
            return str(operator.index(cast("Any", value)))
        except TypeError:
            pass
    raise UsageError(f"{where}: the {what} is {described(value)}; expected a string or an integer")


def _text(value: object, what: str, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: the {what} is {described(value)}; expected a string")
    return usable(value)


def _named(record: Mapping[str, object], names: Sequence[str], what: str, where: str) -> object:
    """The value of the first of ``names`` that the record has."""
    for name in names:
        if name in record:
            return record[name]
    fields = ", ".join(record) or "nothing"
    raise UsageError(f"{where}: no {what}; expected one of {', '.join(names)}, found {fields}")


# ---- Documents


class _RowReader(RecordReader):
    """Reads dictionaries of more libraries than files of JSON lines come from."""

    id_names = DOCUMENT_IDS
    text_names = DOCUMENT_TEXTS
    id_advice = "; rename the field with the id"
    text_advice = "; rename the field with the text"

    def __init__(self) -> None:
        super().__init__((), None, "\n")


def documents(data: object, name: str = "corpus") -> Iterator[Document]:
    """The documents of a collection in memory, each checked, one by one.

    ``data``: rows (see the module), or ``{id: text}`` and ``{id: {"title", "text"}}`` as BEIR's loader gives them. A
    tuple is (id, text), (id, text, title) or (id, text, title, metadata). Rows of a table without ids are numbered.
    Raises :class:`UsageError` for a row that is no document.
    """
    reader = _RowReader()
    rows = _rows_or_entries(data, DOCUMENT_IDS, name, DOCUMENTS_EXPECTED, "docs_iter")
    for number, row in enumerate(rows.values):
        where = f"`{name}`, row {number}"
        record = None if isinstance(row, Document) else record_of(row)
        if record is not None:
            if rows.is_table and not any(field in record for field in DOCUMENT_IDS):
                record = {"id": number, **record}
            if hasattr(row, "default_text") and not any(f in record for f in DOCUMENT_TEXTS):
                record = {**record, "text": row.default_text(), "title": ""}
            yield reader.document(record, where)
        elif isinstance(row, tuple | list) and 2 <= len(row) <= len(Document._fields):
            yield _document(row, where)
        else:
            raise UsageError(_not_a_document(row, where))


def _document(row: Sequence[object], where: str) -> Document:
    """The document of (id, text), (id, text, title) or (id, text, title, metadata)."""
    docid = checked_docid(_id(row[0], "id", where), where)
    # BEIR's loader gives {id: {"title": ..., "text": ...}}.
    inner = record_of(row[1])
    if inner is not None:
        return _RowReader().document({**inner, "id": docid}, where)
    text = _text(row[1], "text", where)
    title = ""
    if len(row) > 2:
        title = _text(row[2], "title", where)
    metadata = None
    if len(row) > 3 and row[3] is not None:
        fields = record_of(row[3])
        if fields is None:
            raise UsageError(
                f"{where}: the metadata are {described(row[3])}; expected a dictionary"
            )
        metadata = metadata_of(fields)
    return Document(docid, text, title, metadata)


def _not_a_document(row: object, where: str) -> str:
    if isinstance(row, str):
        return f"{where} is a text without an id: {described(row)}; give texts as `texts`"
    return (
        f"{where}: expected a Document, a dictionary with an id and a text, or a tuple (id, text), got "
        f"{described(row)}"
    )


def _rows_or_entries(
    data: object, id_names: Sequence[str], name: str, expected: str, method: str
) -> Rows:
    """The rows of a collection, or the entries (id, value) of a dictionary that has one for each id.

    Raises :class:`UsageError` for a dictionary that is itself a row, and what :func:`rows_of` raises.
    """
    if not isinstance(data, Mapping) or any(hasattr(v, "column_names") for v in data.values()):
        return rows_of(data, name, expected, method)
    is_row = any(field in data and not isinstance(data[field], Mapping) for field in id_names)
    if is_row and len(data) > 1:
        raise UsageError(f"`{name}`: one dictionary with an id; put it in a list")
    return Rows(iter(data.items()), False)


def texts(data: object, name: str = "texts") -> Iterator[str]:
    """The texts of a collection in memory: strings, or dictionaries and rows of tables with a text."""
    for number, row in enumerate(rows_of(data, name, TEXTS_EXPECTED).values):
        where = f"`{name}`, row {number}"
        record = record_of(row)
        if record is None:
            yield _text(row, "text", where)
        else:
            yield _text(_named(record, DOCUMENT_TEXTS, "text", where) or "", "text", where)


# ---- Queries


class QueryList(NamedTuple):
    """Queries in their order; ``with_ids`` if the caller gave them ids, otherwise they are numbered."""

    topics: list[Query]
    with_ids: bool


def queries(data: object, name: str = "queries") -> QueryList:
    """The queries of a collection in memory: texts, or topics with an id and a text.

    ``data``: rows (see the module), or ``{id: text}``. A tuple is (id, text). Raises :class:`UsageError` for a row that
    is no query, for texts mixed with topics, and for an id that occurs twice.
    """
    topics: list[Query] = []
    plain_texts: list[str] = []
    rows = _rows_or_entries(data, QUERY_IDS, name, QUERIES_EXPECTED, "queries_iter")
    for number, row in enumerate(rows.values):
        where = f"`{name}`, row {number}"
        if isinstance(row, str):
            plain_texts.append(usable(row))
            continue
        record = None if isinstance(row, Query) else record_of(row)
        if record is None:
            topics.append(_topic(row, where))
        elif rows.is_table and not any(field in record for field in QUERY_IDS):
            plain_texts.append(_text(_named(record, QUERY_TEXTS, "text", where), "text", where))
        else:
            topics.append(_named_topic(row, record, where))
    if topics and plain_texts:
        raise UsageError(f"`{name}`: give texts or topics with ids, not both")
    if plain_texts:
        numbered = [Query(str(number), text) for number, text in enumerate(plain_texts)]
        return QueryList(numbered, False)
    seen = set[str]()
    for topic in topics:
        if topic.qid in seen:
            raise UsageError(f"`{name}`: two topics have the id {topic.qid!r}; ids must be unique")
        seen.add(topic.qid)
    return QueryList(topics, bool(topics) or isinstance(data, Mapping))


def _topic(row: object, where: str) -> Query:
    if isinstance(row, tuple | list) and len(row) == 2:
        return Query(_id(row[0], "id", where), _text(row[1], "text", where))
    raise UsageError(
        f"{where}: expected a text, a Query, a dictionary with an id and a text, or a tuple (id, text), got "
        f"{described(row)}"
    )


def _named_topic(row: object, record: Mapping[str, object], where: str) -> Query:
    qid = _id(_named(record, QUERY_IDS, "id", where), "id", where)
    has_text = any(field in record for field in QUERY_TEXTS)
    if not has_text and hasattr(row, "default_text"):
        return Query(qid, usable(str(row.default_text())))
    return Query(qid, _text(_named(record, QUERY_TEXTS, "text", where), "text", where))


# ---- Judgements and runs


def judgements(data: object, name: str = "qrels") -> Judgements:
    """Query id -> docid -> grade.

    ``data``: a file, ``{query id: {document id: grade}}``, or rows (see the module). A tuple is (query id, document id,
    grade) or, as in TREC's files, (query id, subtopic, document id, grade). Raises :class:`UsageError` for anything
    else, and for two grades of one pair.
    """
    if isinstance(data, Judgements):
        return data
    if is_path(data):
        return read_qrels(cast("str", data))
    qrels = Judgements()
    if isinstance(data, Mapping):
        for key, grades in data.items():
            where = f"`{name}`, query {key!r}"
            if not isinstance(grades, Mapping):
                raise UsageError(
                    f"{where}: expected {{document id: grade}}, got {described(grades)}"
                )
            qid = _id(key, "query id", where)
            qrels.setdefault(qid, {})
            for docid, grade in grades.items():
                qrels.add(qid, _id(docid, "document id", where), _grade(grade, where))
        return qrels
    for number, row in enumerate(rows_of(data, name, QRELS_EXPECTED, "qrels_iter").values):
        where = f"`{name}`, row {number}"
        found = _triple(row, GRADES, "grade", where)
        grade = _grade(found.value, where)
        first = qrels.add(found.qid, found.docid, grade, found.subtopic)
        if first != grade:
            raise UsageError(
                f"{where}: document {found.docid!r} of query {found.qid!r} has grade {grade} here and {first} before"
            )
    return qrels


def run_of(data: object, name: str = "run") -> dict[str, dict[str, float]]:
    """Query id -> docid -> score, in the order of ``data``.

    ``data``: ``{query id: hits}``, ``{query id: {document id: score}}``, or rows (see the module). A tuple is (query
    id, document id, score). Files are read by :func:`~dupmae_ir.io.runs.any_run`. Raises :class:`UsageError` for
    anything else, and for a document listed twice.
    """
    run: dict[str, dict[str, float]] = {}
    if isinstance(data, Mapping):
        for key, hits in data.items():
            where = f"`{name}`, query {key!r}"
            scores = run.setdefault(_id(key, "query id", where), {})
            for docid, score in hits_of(hits, where):
                _add_score(scores, docid, score, where)
        return run
    for number, row in enumerate(rows_of(data, name, RUN_EXPECTED, "scoreddocs_iter").values):
        where = f"`{name}`, row {number}"
        found = _triple(row, SCORES, "score", where)
        score = _score(found.value, found.docid, where)
        _add_score(run.setdefault(found.qid, {}), found.docid, score, where)
    return run


def hits_of(hits: object, where: str) -> Iterator[tuple[str, float]]:
    """(docid, score) of each hit of a query: of hits or of ``{document id: score}``. Raises :class:`UsageError`, naming
    ``where``, for anything else."""
    if isinstance(hits, Mapping):
        hits = hits.items()
    if not isinstance(hits, Iterable) or isinstance(hits, str | bytes):
        raise UsageError(f"{where}: expected hits or {{document id: score}}, got {described(hits)}")
    for hit in hits:
        try:
            docid, score = hit
        except (TypeError, ValueError):
            raise UsageError(
                f"{where}: expected a Hit or (docid, score), got {described(hit)}"
            ) from None
        # A run has millions of hits, and nearly all are of these types.
        if type(docid) is not str or not docid.isascii():
            docid = _id(docid, "document id", where)
        if type(score) is not float:
            score = _score(score, docid, where)
        yield docid, score


def _score(value: object, docid: str, where: str) -> float:
    """A score as a float; numpy's scalars are real numbers as well."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UsageError(
            f"{where}, document {docid!r}: the score is {described(value)}; expected a number"
        )
    return float(value)


def _add_score(scores: dict[str, float], docid: str, score: float, where: str) -> None:
    if docid in scores:
        raise UsageError(f"{where}: document {docid!r} is listed twice")
    scores[docid] = score


class _Triple(NamedTuple):
    """A row of judgements or of a run."""

    qid: str
    docid: str
    value: object  #: the grade or the score
    subtopic: str = NO_SUBTOPIC


def _triple(row: object, value_names: Sequence[str], what: str, where: str) -> _Triple:
    subtopic: object = None
    record = record_of(row)
    if record is not None:
        qid = _named(record, QUERY_IDS_OF_PAIRS, "query id", where)
        docid = _named(record, DOCUMENT_IDS_OF_PAIRS, "document id", where)
        value = _named(record, value_names, what, where)
        for field in SUBTOPICS:
            subtopic = record.get(field, subtopic)
    elif isinstance(row, tuple | list) and len(row) == 3:
        qid, docid, value = row
    elif isinstance(row, tuple | list) and len(row) == 4 and what == "grade":
        qid, subtopic, docid, value = row
    else:
        raise UsageError(
            f"{where}: expected (query id, document id, {what}) or a dictionary, got {described(row)}"
        )
    if subtopic is None:
        subtopic = NO_SUBTOPIC
    return _Triple(
        _id(qid, "query id", where),
        _id(docid, "document id", where),
        value,
        _id(subtopic, "subtopic", where),
    )


def _grade(value: object, where: str) -> int:
    """A grade, which a table with missing values may hold as a float."""
    converted = plain(value)
    if isinstance(converted, float) and converted.is_integer():
        return int(converted)
    if isinstance(converted, bool) or not isinstance(converted, int):
        raise UsageError(f"{where}: the grade is {described(value)}; expected an integer")
    return converted


# ---- Training data


def training_rows(data: object, name: str, expected: str) -> Iterator[dict[str, object]]:
    """The rows of training data as dictionaries of Python's own types.

    A tuple is (query, passage) or (query, passage, negatives ...). An object with ``texts``, as sentence-transformers'
    ``InputExample``, is such a tuple, with its ``label`` if there is one.
    """
    for number, row in enumerate(rows_of(data, name, expected).values):
        where = f"`{name}`, row {number}"
        record = record_of(row)
        label = None
        if record is None and isinstance(getattr(row, "texts", None), list | tuple):
            label = getattr(row, "label", None)
            row = cast("Any", row).texts
        if record is not None:
            yield record
        elif isinstance(row, tuple | list) and len(row) >= 2:
            pair: dict[str, object] = {"query": plain(row[0]), "positive": plain(row[1])}
            if len(row) > 2:
                pair["negatives"] = [plain(negative) for negative in row[2:]]
            # sentence-transformers sets a label of 0 where none is given.
            if label:
                pair["label"] = plain(label)
            yield pair
        else:
            raise InputError(
                f"{where}: expected a dictionary or a tuple (query, passage), got {described(row)}"
            )
