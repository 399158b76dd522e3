"""``dupmae-ir index verify``: checks every byte of an index, and its parts against each other.

:func:`problems` reads every file and compares its sha256, then decodes the parts: ids, forward index, Lucene's postings
(after Lucene's CheckIndex) and ours must contain the same documents and impacts. Parts with damaged files are named and
not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dupmae_ir import pyserini
from dupmae_ir.errors import DupmaeError
from dupmae_ir.index.format import integrity, manifest, rotated
from dupmae_ir.index.format.manifest import META, read_manifest
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.impacts import ImpactSearcher
from dupmae_ir.index.postings.format import compare_postings


def problems(path: str | Path) -> list[str]:
    """Everything that is wrong with the index at ``path``, one line each; empty for an undamaged index.

    Reads every byte and starts the JVM. Raises :class:`InputError` for a path that is not an index.
    """
    path = Path(path)
    if not (path / META).is_file():
        manifest.read_meta(path)  # raises
    try:
        records = read_manifest(path)
    except DupmaeError as e:
        return [str(e)]
    messages: list[str] = []
    for record in records.segments:
        try:
            segment = Segment(path, records, record)
        except FileNotFoundError as e:
            messages.append(f"{e.filename} is missing")
            continue
        damaged = _damaged_files(segment)
        damaged_parts = {integrity.part_of(name) for name in damaged}
        messages.extend(damaged.values())
        messages.extend(_differences(segment, damaged_parts))
    if messages:
        return messages
    # The segments are undamaged; they must also agree with each other.
    try:
        index = Index.open(path)
    except DupmaeError as e:
        return [str(e)]
    # An updated document has a deleted row with the same id.
    docids = [index.docids[row] for row in np.flatnonzero(index.live).tolist()]
    if len(set(docids)) < len(docids):
        return [f"{path}: a document id is in two segments; {integrity.AGAIN}"]
    return []


def _damaged_files(segment: Segment) -> dict[str, str]:
    """Name -> what is wrong with it, for every damaged file.

    A mark of another index, or an unknown commit of Lucene, is reported for the first file of its part.
    """
    files = segment.record.files
    first_files: dict[str, str] = {}
    for name in files:
        first_files.setdefault(integrity.part_of(name), name)
    damaged: dict[str, str] = {}
    for part, name in first_files.items():
        problem = segment.part_problem(part)
        if problem:
            damaged[name] = problem
    for name, record in files.items():
        path = segment.path / name
        problem = integrity.size_problem(path, record.bytes)
        if not problem:
            problem = integrity.content_problem(path, record.sha256)
        # The check of the part may have reported the same problem.
        if problem and problem not in damaged.values():
            damaged[name] = problem
    return damaged


def _differences(segment: Segment, damaged: set[str]) -> Iterator[str]:
    """Messages about decoded parts that disagree; a check runs only if the parts that it reads are undamaged."""
    checks: list[tuple[set[str], Callable[[Segment], str | None]]] = [
        ({"ids", *segment.required_parts} - {"ot"}, _content_problem),
        ({"ids", "cls"}, _id_problem),
        ({"ids", "forward"}, _impact_problem),
        ({"ids", "forward", "ot"}, _lucene_problem),
        ({"ids", "forward", "postings"}, compare_postings),
        ({"ids", "texts"}, _text_problem),
        ({"ids", "cls", rotated.PART}, _check_codes),
        ({"ids", integrity.EXCERPTS}, _check_excerpts),
    ]
    parts = {*segment.required_parts, *map(integrity.part_of, segment.record.files)}
    if not segment.has_lucene:
        parts.discard("ot")
    undamaged = parts - damaged
    for needed, check in checks:
        if not needed <= undamaged:
            continue
        try:
            problem = check(segment)
        except DupmaeError as e:
            problem = str(e)
        if problem:
            yield problem


def _content_problem(segment: Segment) -> str | None:
    if manifest.content_digest(segment.path, segment.dim) != segment.digest:
        return f"{segment.path}: ids, vectors and impacts are not the ones that meta.json describes; {integrity.AGAIN}"
    return None


def _id_problem(segment: Segment) -> str | None:
    if (segment.path / "cls" / "docid").read_bytes() != (segment.path / "docid").read_bytes():
        return f"{segment.path / 'cls' / 'docid'} differs from {segment.path / 'docid'}"
    if len(set(segment.docids)) != segment.documents:
        return f"{segment.path / 'docid'} has an id twice"
    return None


def _impact_problem(segment: Segment) -> str | None:
    """The forward index must be a CSR matrix with ascending terms of the vocabulary and impacts of at least 1."""
    forward = segment.forward
    folder = segment.path / "forward"
    if forward.indptr[0] != 0 or (np.diff(forward.indptr) < 0).any():
        return f"{folder / 'indptr.npy'} is not ascending"
    if len(forward.terms) and int(forward.terms.max()) >= len(segment.terms):
        return f"{folder / 'terms.npy'} has a term outside the vocabulary of {len(segment.terms):,} terms"
    ascending = np.diff(forward.terms.astype(np.int64)) > 0
    # From one document to the next the term may fall. Empty documents at either end have no such step.
    row_starts = forward.indptr[1:-1]
    row_starts = row_starts[(row_starts > 0) & (row_starts < len(forward.terms))]
    ascending[row_starts - 1] = True
    if not ascending.all():
        return f"{folder / 'terms.npy'}: the terms of a document are not ascending"
    if not forward.impacts.all():
        return f"{folder / 'impacts.npy'} has an impact of 0"
    return None


def _lucene_problem(segment: Segment) -> str | None:
    """Lucene's CheckIndex, then ids and postings against the forward index."""
    folder = segment.path / "ot"
    problem = pyserini.check_index(folder)
    if problem:
        return f"{folder}: {problem}"
    searcher = segment.searcher
    for row, docid in enumerate(segment.docids):
        lucene_docid = searcher.docid(row)
        if lucene_docid != docid:
            return f"{folder}: document {row} is {lucene_docid!r}, expected {docid!r}"
    if searcher.postings != segment.record.postings:
        return f"{folder} has {searcher.postings:,} postings, the forward index {segment.record.postings:,}"
    return _lucene_postings_problem(segment, searcher)


def _lucene_postings_problem(segment: Segment, searcher: ImpactSearcher) -> str | None:
    """Compare the postings of every term; the totals are equal, so Lucene can have no others."""
    forward = segment.forward
    shape = (segment.documents, len(segment.terms))
    by_term = sp.csr_matrix((forward.impacts, forward.terms, forward.indptr), shape=shape).tocsc()
    for term in np.flatnonzero(np.diff(by_term.indptr)).tolist():
        postings = slice(by_term.indptr[term], by_term.indptr[term + 1])
        expected_rows = by_term.indices[postings]
        expected_impacts = by_term.data[postings]
        # One hit more than expected, to see a posting too many. With a query weight of 1 the scores are the impacts.
        query = {segment.terms[term]: 1}
        rows, impacts = searcher.top([query], len(expected_rows) + 1)[0]
        order = np.argsort(rows)
        same_rows = np.array_equal(rows[order], expected_rows)
        if not same_rows or not np.array_equal(impacts[order], expected_impacts):
            return f"{segment.path / 'ot'}: the postings of {segment.terms[term]!r} differ from the forward index"
    return None


def _text_problem(segment: Segment) -> str | None:
    """Every block and column, and the ids of the documents."""
    store = segment.texts
    assert store is not None
    problem = store.verify()
    if problem:
        return problem
    for row, docid in enumerate(segment.docids):
        stored_docid = store.get(row).docid
        if stored_docid != docid:
            return f"{store.folder}: row {row} is document {stored_docid!r}, expected {docid!r}"
    return None


def _check_excerpts(segment: Segment) -> None:
    segment.excerpts  # noqa: B018 (raises)


def _check_codes(segment: Segment) -> None:
    rotated.open_rotated(segment)  # raises
