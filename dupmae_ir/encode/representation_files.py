"""Pyserini's representation files, which ``pyserini.index.lucene --collection JsonVectorCollection`` reads.

``FOLDER/ot/*.jsonl`` contain impacts (``"vector": {term: integer}``), ``FOLDER/cls/*.jsonl`` the dense vectors
(``"vector": [float, ...]``), one file per window, each line ``{"id", "contents", "vector"}`` with title and text in
``contents``. Dense lines repeat the id as ``docid``, where Anserini's ``JsonDenseVectorCollection`` (Lucene's flat and
HNSW indexes) looks for it. The whole folder appears at once, when the encoding is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import scipy.sparse as sp

from dupmae_ir.encode.window_files import EncodedWindow
from dupmae_ir.encode.windows import Window
from dupmae_ir.errors import UsageError
from dupmae_ir.io.jobs import work_folder
from dupmae_ir.io.publishing import atomic_write, move_into_place, read_json_object, write_json
from dupmae_ir.types import Document

WORK = "work.json"


class JsonlFolder:
    """Representation files in the making: written beside ``target``, moved there by :meth:`publish`.

    ``work`` is the id of the encoding they belong to; a finished folder records it.
    """

    def __init__(self, target: Path, work: str, overwrite: bool = False) -> None:
        self.target, self.work = target, work
        self.aside = work_folder(target)
        existing = jsonl_work(target)
        self.done = existing == work
        occupied = target.exists() and (not target.is_dir() or any(target.iterdir()))
        if occupied and not self.done and not (overwrite and existing):
            tip = "add `overwrite` to replace it" if existing else "name another folder"
            raise UsageError(f"`jsonl` {target}: already exists; {tip}")
        if read_json_object(self.aside / WORK).get("work") != work and not self.done:
            shutil.rmtree(self.aside, ignore_errors=True)
            write_json(self.aside / WORK, {"work": work})

    def has(self, number: int) -> bool:
        """Whether the files of window ``number`` exist."""
        return self.done or any(self.aside.glob(f"*/{_name(number)}"))

    def write(self, window: Window, encoded: EncodedWindow, terms: Sequence[str] | None) -> None:
        """Write the files of one window, each atomically; writing a window again replaces them."""
        if self.done:
            return
        for kind, vectors in vectors_of(encoded, terms).items():
            with atomic_write(self.aside / kind / _name(window.number)) as f:
                for document, vector in zip(window.documents, vectors, strict=True):
                    f.write(line_of(document, vector) + "\n")

    def publish(self) -> None:
        """Move the complete folder into place. Calling it again after a kill is harmless."""
        if not self.done:
            move_into_place(self.aside, self.target)
            self.done = True

    def discard(self) -> None:
        """Remove unfinished files."""
        shutil.rmtree(self.aside, ignore_errors=True)


def vectors_of(
    encoded: EncodedWindow, terms: Sequence[str] | None
) -> dict[str, Iterator[list[float] | dict[str, int]]]:
    """``{"cls": lists of floats, "ot": dicts of term to int}`` of the parts that exist, one item per document."""
    vectors: dict[str, Iterator[list[float] | dict[str, int]]] = {}
    if encoded.cls is not None:
        vectors["cls"] = (row.tolist() for row in encoded.cls)
    if encoded.impacts is not None and terms is not None:
        vectors["ot"] = impact_dicts(encoded.impacts, terms)
    return vectors


def impact_dicts(impacts: sp.csr_matrix, terms: Sequence[str]) -> Iterator[dict[str, int]]:
    """Rows of an integer CSR as ``{term: impact}`` of Python integers, which the Java bridge requires."""
    for start, end in zip(impacts.indptr[:-1], impacts.indptr[1:], strict=True):
        yield {terms[t]: int(i) for t, i in zip(impacts.indices[start:end], impacts.data[start:end], strict=True)}


def line_of(document: Document, vector: list[float] | dict[str, int]) -> str:
    """One line in the format of Pyserini's own writer."""
    contents = f"{document.title}\n{document.text}" if document.title else document.text
    row = {"id": document.docid, "contents": contents, "vector": vector}
    if isinstance(vector, list):
        row = {"docid": document.docid, **row}
    return json.dumps(row, ensure_ascii=False)


def jsonl_work(target: Path) -> str | None:
    """The id of the encoding that a finished folder belongs to; None for other folders."""
    return read_json_object(target / WORK).get("work")


def _name(number: int) -> str:
    return f"part-{number:06d}.jsonl"
