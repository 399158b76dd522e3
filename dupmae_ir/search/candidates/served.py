"""The rows of candidates, read from a server instead of an index folder, as a segment in memory.

Rows are numbered as they arrive. Vectors and impacts are bit-identical to the folder's and are scored by the same code,
so scores and lists are identical, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.index import Index
from dupmae_ir.search.candidates.server import ServerIndex
from dupmae_ir.servers.protocol import TEXTS, Row


class RowArray:
    """An array of ``shape`` whose rows are computed when they are read."""

    def __init__(self, shape: tuple[int, ...], read: Callable[[list[int]], object]) -> None:
        self.shape = shape
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self._read(rows.tolist()))


class ServedSegment:
    """The rows that a search has read so far: a segment of the index, with its own impacts and texts.

    It has room for all documents of the table. ``texts``: read titles, texts and metadata, too.
    """

    postings_problem = None  #: there are no postings to check

    def __init__(self, record: Index, server: ServerIndex, texts: bool) -> None:
        self.path = record.path
        self.documents = record.documents
        self.terms = record.terms
        self._vocabulary = record.vocabulary
        self.dim = record.dim
        self.scale = record.scale
        self.docids: list[str] = []
        self.vectors = RowArray(
            (self.documents, self.dim or 0), lambda rows: [self._rows[row].cls for row in rows]
        )
        self.docid_rank = RowArray((self.documents,), self._ranks)
        # This object has the methods of a segment's forward index and of its texts.
        self.forward = self
        self.texts = self
        self._server = server
        self._fields = tuple(record.parts)
        if texts and record.has_texts:
            self._fields += tuple(TEXTS)
        self._rows: list[Row] = []
        self._row_of: dict[str, int] = {}

    def has_part(self, part: str) -> bool:
        """Whether texts can be read."""
        return part == "texts" and "text" in self._fields

    def rows(self, docids: Sequence[str]) -> np.ndarray:
        """(m,) int64: the rows of documents, which are read if they are new; -1 for one that the table lacks."""
        new = [docid for docid in dict.fromkeys(docids) if docid not in self._row_of]
        if new:
            for row in self._server.read(new, self._fields):
                self._row_of[row.docid] = len(self._rows)
                self._rows.append(row)
                self.docids.append(row.docid)
        return np.array([self._row_of.get(docid, -1) for docid in docids], np.int64)

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Vocabulary ids and impacts of one document."""
        return self._rows[row].impacts

    def scores(
        self, rows: np.ndarray, query_ids: np.ndarray, query_impacts: np.ndarray
    ) -> np.ndarray:
        """Exact inner products with one query: (m,) rows, (t,) vocabulary ids, (t,) impacts -> (m,) int64."""
        table = np.zeros(self._vocabulary, np.int64)
        table[query_ids] = query_impacts
        sums = []
        for row in rows.tolist():
            ids, impacts = self.row(row)
            sums.append(table[ids] @ impacts)
        return np.array(sums, np.int64)

    def get(self, row: int) -> StoredDocument:
        """The document of a row."""
        return self._rows[row].document

    def _ranks(self, rows: list[int]) -> np.ndarray:
        """The ranks of rows among each other by their ids: enough to order the rows of one list."""
        order = sorted(range(len(rows)), key=lambda position: self.docids[rows[position]])
        # argsort of a permutation is its inverse: from positions by rank to ranks by position.
        return np.argsort(order)
