"""``dupmae-ir index verify``: every byte of an index, and its parts against each other.

:func:`problems` reads every file and compares its sha256, then decodes the parts: ids, forward index, Lucene's postings
(after Lucene's own CheckIndex) and ours must contain the same documents and impacts. Parts with damaged files are named
and not decoded.
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
    every: list[str] = []
    for record in records.segments:
        try:
            segment = Segment(path, records, record)
        except FileNotFoundError as e:
            every.append(f"{e.filename} is missing")
            continue
        damaged = _damaged_files(segment)
        every += damaged.values()
        every += _differences(segment, {integrity.part_of(name) for name in damaged})
    if every:
        return every
    # Undamaged segments taken together.
    try:
        index = Index.open(path)
    except DupmaeError as e:
        return [str(e)]
    docids = [index.docids[row] for row in np.flatnonzero(index.live).tolist()]
    return (
        []
        if len(set(docids)) == len(docids)
        else [f"{path}: a document id is in two segments; {integrity.AGAIN}"]
    )


def _damaged_files(segment: Segment) -> dict[str, str]:
    """Name -> what is wrong, for every recorded file; a mark of another index, or an unknown commit, counts for all of
    its part."""
    files = segment.record.files
    damaged: dict[str, str] = {}
    for part in dict.fromkeys(map(integrity.part_of, files)):
        if problem := segment.part_problem(part):
            damaged[next(name for name in files if integrity.part_of(name) == part)] = problem
    for name, recorded in files.items():
        problem = integrity.size_problem(segment.path / name, recorded.bytes)
        problem = problem or integrity.content_problem(segment.path / name, recorded.sha256)
        if problem and problem not in damaged.values():
            damaged[name] = problem
    return damaged


def _differences(segment: Segment, damaged: set[str]) -> Iterator[str]:
    """What the decoded parts say; each check runs only where the parts it reads are undamaged."""
    checks: list[tuple[set[str], Callable[[Segment], str | None]]] = [
        ({"ids", *segment.required_parts} - {"ot"}, _wrong_contents),
        ({"ids", "cls"}, _other_ids),
        ({"ids", "forward"}, _impossible_impacts),
        ({"ids", "forward", "ot"}, _other_lucene),
        ({"ids", "forward", "postings"}, compare_postings),
        ({"ids", "texts"}, _other_texts),
        ({"ids", "cls", rotated.PART}, _unusable_codes),
    ]
    there = {*segment.required_parts, *map(integrity.part_of, segment.record.files)}
    there -= set() if segment.has_lucene else {"ot"}
    for parts, check in checks:
        if parts <= there - damaged:
            try:
                problem = check(segment)
            except DupmaeError as e:
                problem = str(e)
            if problem:
                yield problem


def _wrong_contents(segment: Segment) -> str | None:
    if manifest.content_digest(segment.path, segment.dim) != segment.digest:
        return f"{segment.path}: ids, vectors and impacts are not the ones that meta.json describes; {integrity.AGAIN}"
    return None


def _other_ids(segment: Segment) -> str | None:
    if (segment.path / "cls" / "docid").read_bytes() != (segment.path / "docid").read_bytes():
        return f"{segment.path / 'cls' / 'docid'} differs from {segment.path / 'docid'}"
    if len(set(segment.docids)) != segment.documents:
        return f"{segment.path / 'docid'} has an id twice"
    return None


def _impossible_impacts(segment: Segment) -> str | None:
    """The forward index must be a CSR matrix with ascending terms of the vocabulary and impacts of at least 1."""
    forward, where = segment.forward, segment.path / "forward"
    steps = np.diff(forward.indptr)
    if forward.indptr[0] != 0 or (steps < 0).any():
        return f"{where / 'indptr.npy'} is not ascending"
    if len(forward.terms) and int(forward.terms.max()) >= len(segment.terms):
        return f"{where / 'terms.npy'} has a term outside the vocabulary of {len(segment.terms):,} terms"
    ascending = np.diff(forward.terms.astype(np.int64)) > 0
    row_starts = forward.indptr[1:-1][
        (forward.indptr[1:-1] > 0) & (forward.indptr[1:-1] < len(forward.terms))
    ]
    ascending[row_starts - 1] = True
    if not ascending.all():
        return f"{where / 'terms.npy'}: the terms of a document are not ascending"
    if not forward.impacts.all():
        return f"{where / 'impacts.npy'} has an impact of 0"
    return None


def _other_lucene(segment: Segment) -> str | None:
    """Lucene's CheckIndex, then ids and postings against the forward segment."""
    where = segment.path / "ot"
    if problem := pyserini.check_index(where):
        return f"{where}: {problem}"
    searcher = segment.searcher
    for row, docid in enumerate(segment.docids):
        if searcher.docid(row) != docid:
            return f"{where}: document {row} is {searcher.docid(row)!r}, expected {docid!r}"
    if (count := searcher.postings) != segment.record.postings:
        return f"{where} has {count:,} postings, the forward index {segment.record.postings:,}"
    return _other_postings_in_lucene(segment, searcher)


def _other_postings_in_lucene(segment: Segment, searcher: ImpactSearcher) -> str | None:
    """With as many postings in all, equal rows and impacts of every term leave no room for others."""
    forward = segment.forward
    shape = (segment.documents, len(segment.terms))
    by_term = sp.csr_matrix((forward.impacts, forward.terms, forward.indptr), shape=shape).tocsc()
    terms = np.flatnonzero(np.diff(by_term.indptr))
    for term in terms:
        here = slice(by_term.indptr[term], by_term.indptr[term + 1])
        expected = by_term.indices[here], by_term.data[here]
        rows, impacts = searcher.top([{segment.terms[term]: 1}], len(expected[0]) + 1)[0]
        order = np.argsort(rows)
        if not (
            np.array_equal(rows[order], expected[0]) and np.array_equal(impacts[order], expected[1])
        ):
            return f"{segment.path / 'ot'}: the postings of {segment.terms[term]!r} differ from the forward index"
    return None


def _other_texts(segment: Segment) -> str | None:
    """Every block and column, and the ids of the documents."""
    store = segment.texts
    assert store is not None
    if problem := store.verify():
        return problem
    for row, docid in enumerate(segment.docids):
        if store.get(row).docid != docid:
            return f"{store.folder}: row {row} is document {store.get(row).docid!r}, expected {docid!r}"
    return None


def _unusable_codes(segment: Segment) -> None:
    rotated.open_rotated(segment)  # raises
