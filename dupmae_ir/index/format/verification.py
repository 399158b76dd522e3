"""``dupmae-ir index verify`` and ``index seal``: every byte of an index, and its parts against each other.

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
from dupmae_ir.errors import DupmaeError, IndexMismatch
from dupmae_ir.index.changes.generations import generation_of
from dupmae_ir.index.config import KINDS
from dupmae_ir.index.format import dense_kinds, integrity, manifest
from dupmae_ir.index.format.manifest import META, Meta
from dupmae_ir.index.format.segments import live_rows, open_index
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.impacts import ImpactSearcher
from dupmae_ir.index.postings import postings
from dupmae_ir.io.locks import exclusive, lock_path


def problems(path: str | Path) -> list[str]:
    """Everything that is wrong with the index at ``path``, one line each; empty for a whole index.

    Reads every byte and starts the JVM. Raises :class:`InputError` for a path that is not an index.
    """
    path = Path(path)
    if not (path / META).is_file():
        manifest.read_meta(path)  # raises
    try:
        index = Index(path, manifest.read_meta(path))
    except DupmaeError as e:
        return [str(e)]
    found = _problems_of(index)
    for record in generation_of(index.meta).segments:
        try:
            found += _problems_of(Index(path, manifest.read_meta(path / record.path), record.path))
        except DupmaeError as e:
            found.append(str(e))
    return found or _problems_of_generation(path)


def _problems_of(index: Index) -> list[str]:
    """Everything that is wrong with one segment."""
    damaged = _damaged_files(index)
    return [*damaged.values(), *_differences(index, {integrity.part_of(name) for name in damaged})]


def _problems_of_generation(path: Path) -> list[str]:
    """What is wrong with whole segments taken together."""
    try:
        index = open_index(path)
    except DupmaeError as e:
        return [str(e)]
    docids = [index.docids[row] for row in np.flatnonzero(live_rows(index)).tolist()]
    return [] if len(set(docids)) == len(docids) else [f"{path}: a document id is in two segments; {integrity.AGAIN}"]


def seal(path: str | Path) -> Meta:
    """Verify an older index and record its files in its manifest; returns the new manifest.

    A sealed index is returned as it is. Raises :class:`IndexMismatch`, naming the first problem, for a damaged one;
    nothing is written then.
    """
    path = Path(path)
    with exclusive(lock_path(path / META), f"sealing {path}"):
        meta = manifest.read_meta(path)
        if not manifest.is_sealed(meta):
            meta = _sealed(path, meta)
            manifest.write_meta(path, meta)
        # Last: a run that was killed here is completed by the next.
        integrity.mark_parts(path, meta["parts"], meta["digest"], missing_only=True)
    return open_index(path).meta


def _sealed(path: Path, meta: Meta) -> Meta:
    """The manifest with the records of all files, which were verified."""
    if found := problems(path):
        raise IndexMismatch(f"{path} was not sealed: {found[0]}")
    files = integrity.describe_parts(path, meta["parts"])
    for part in _optional(path):
        files |= integrity.describe(path, integrity.names_of(path, part))
    return manifest.sealed(meta, files | integrity.describe_marks(meta["parts"], meta["digest"]))


def _optional(path: Path) -> list[str]:
    """The optional parts that an index folder has."""
    found = [f"cls/{kind}" for kind in KINDS if (path / "cls" / f"{kind}.json").exists()]
    return [*found, *(["postings"] if postings.folder_of(path).is_dir() else [])]


def _damaged_files(index: Index) -> dict[str, str]:
    """Name -> what is wrong, for every recorded file; a mark of another index, or an unknown commit, counts for all of
    its part."""
    files: integrity.Files = index.meta["files"] if index.sealed else {}
    found: dict[str, str] = {}
    for part in dict.fromkeys(map(integrity.part_of, files)):
        if problem := index.part_problem(part):
            found[next(name for name in files if integrity.part_of(name) == part)] = problem
    for name, recorded in files.items():
        problem = integrity.size_problem(index.path / name, recorded["bytes"])
        problem = problem or integrity.content_problem(index.path / name, recorded)
        if problem and problem not in found.values():
            found[name] = problem
    return found


def _differences(index: Index, damaged: set[str]) -> Iterator[str]:
    """What the decoded parts say; each check runs only where the parts it reads are undamaged."""
    checks: list[tuple[set[str], Callable[[Index], str | None]]] = [
        ({"ids", *index.required_parts} - {"ot"}, _wrong_contents),
        ({"ids", "cls"}, _other_ids),
        ({"ids", "forward"}, _impossible_impacts),
        ({"ids", "forward", "ot"}, _other_lucene),
        ({"ids", "forward", "postings"}, _other_postings),
        ({"ids", "texts"}, _other_texts),
        *(({"ids", "cls", f"cls/{kind}"}, _kind_check(kind)) for kind in KINDS),
    ]
    there = {*index.required_parts, *_optional(index.path), *(["texts"] if index.has_texts else [])}
    there -= set() if index.has_lucene else {"ot"}
    for parts, check in checks:
        if parts <= there - damaged:
            try:
                problem = check(index)
            except DupmaeError as e:
                problem = str(e)
            if problem:
                yield problem


def _wrong_contents(index: Index) -> str | None:
    if not index.sealed:
        index.check_counts()
    if manifest.content_digest(index.path, index.dim) != index.meta["digest"]:
        return f"{index.path}: ids, vectors and impacts are not the ones that meta.json describes; {integrity.AGAIN}"
    return None


def _other_ids(index: Index) -> str | None:
    if (index.path / "cls" / "docid").read_bytes() != (index.path / "docid").read_bytes():
        return f"{index.path / 'cls' / 'docid'} differs from {index.path / 'docid'}"
    if len(set(index.docids)) != index.documents:
        return f"{index.path / 'docid'} has an id twice"
    return None


def _impossible_impacts(index: Index) -> str | None:
    """The forward index must be a CSR matrix with ascending terms of the vocabulary and impacts of at least 1."""
    forward, where = index.forward, index.path / "forward"
    steps = np.diff(forward.indptr)
    if forward.indptr[0] != 0 or (steps < 0).any():
        return f"{where / 'indptr.npy'} is not ascending"
    if len(forward.terms) and int(forward.terms.max()) >= len(index.terms):
        return f"{where / 'terms.npy'} has a term outside the vocabulary of {len(index.terms):,} terms"
    ascending = np.diff(forward.terms.astype(np.int64)) > 0
    row_starts = forward.indptr[1:-1][(forward.indptr[1:-1] > 0) & (forward.indptr[1:-1] < len(forward.terms))]
    ascending[row_starts - 1] = True
    if not ascending.all():
        return f"{where / 'terms.npy'}: the terms of a document are not ascending"
    if not forward.impacts.all():
        return f"{where / 'impacts.npy'} has an impact of 0"
    return None


def _other_lucene(index: Index) -> str | None:
    """Lucene's CheckIndex, then ids and postings against the forward index."""
    where = index.path / "ot"
    if problem := pyserini.check_index(where):
        return f"{where}: {problem}"
    searcher = index.searcher
    for row, docid in enumerate(index.docids):
        if searcher.docid(row) != docid:
            return f"{where}: document {row} is {searcher.docid(row)!r}, expected {docid!r}"
    if (count := searcher.postings) != index.meta["postings"]:
        return f"{where} has {count:,} postings, the forward index {index.meta['postings']:,}"
    return _other_postings_in_lucene(index, searcher)


def _other_postings_in_lucene(index: Index, searcher: ImpactSearcher) -> str | None:
    """With as many postings in all, equal rows and impacts of every term leave no room for others."""
    forward = index.forward
    shape = (index.documents, len(index.terms))
    by_term = sp.csr_matrix((forward.impacts, forward.terms, forward.indptr), shape=shape).tocsc()
    terms = np.flatnonzero(np.diff(by_term.indptr))
    for term in terms:
        here = slice(by_term.indptr[term], by_term.indptr[term + 1])
        expected = by_term.indices[here], by_term.data[here]
        rows, impacts = searcher.top([{index.terms[term]: 1}], len(expected[0]) + 1)[0]
        order = np.argsort(rows)
        if not (np.array_equal(rows[order], expected[0]) and np.array_equal(impacts[order], expected[1])):
            return f"{index.path / 'ot'}: the postings of {index.terms[term]!r} differ from the forward index"
    return None


def _other_postings(index: Index) -> str | None:
    return postings.compare_postings(index)


def _other_texts(index: Index) -> str | None:
    """Every block and column, and the ids of the documents."""
    store = index.texts
    assert store is not None
    if problem := store.verify():
        return problem
    for row, docid in enumerate(index.docids):
        if store.get(row).docid != docid:
            return f"{store.folder}: row {row} is document {store.get(row).docid!r}, expected {docid!r}"
    return None


def _kind_check(kind: str) -> Callable[[Index], str | None]:
    def check(index: Index) -> None:
        dense_kinds.open_kind(index, kind)

    return check
