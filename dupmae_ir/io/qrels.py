"""Relevance judgements in the formats of TREC and BEIR."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dupmae_ir.arguments import checked
from dupmae_ir.errors import InputError
from dupmae_ir.io.lines import columns, numbered_lines

LARGEST_GRADE = 1000  #: trec_eval allocates a counter for every grade up to the largest, so a stray number hangs it


NO_SUBTOPIC = "0"
"""What TREC's second column has where judgements are about the query itself."""


class Judgements(dict[str, dict[str, int]]):
    """Query id -> docid -> grade. A document that is judged for several subtopics of a query has the highest grade.

    ``subtopics``: (query id, docid) -> subtopic -> grade, for judgements about subtopics (TREC's second column).
    """

    def __init__(self) -> None:
        super().__init__()
        self.subtopics: dict[tuple[str, str], dict[str, int]] = {}

    def add(self, qid: str, docid: str, grade: int, subtopic: str = NO_SUBTOPIC) -> int:
        """Add a judgement; returns the grade that it has, another one if the same was judged differently before."""
        of_query = self.setdefault(qid, {})
        if subtopic in (NO_SUBTOPIC, "Q0"):
            return of_query.setdefault(docid, grade)
        recorded = self.subtopics.setdefault((qid, docid), {}).setdefault(subtopic, grade)
        of_query[docid] = max(of_query.get(docid, grade), grade)
        return recorded

    def by_subtopic(self) -> Iterator[tuple[str, str, str, int]]:
        """(query id, subtopic, docid, grade) of every judgement."""
        for qid, grades in self.items():
            for docid, grade in grades.items():
                subtopics = self.subtopics.get((qid, docid), {NO_SUBTOPIC: grade})
                for subtopic, subtopic_grade in subtopics.items():
                    yield qid, subtopic, docid, subtopic_grade


@checked
def read_qrels(path: str | Path, split: str = "test") -> Judgements:
    """Query id -> docid -> grade, in file order.

    Reads TREC's four columns (``qid iteration docid grade``) and BEIR's three tab-separated ones
    (``query-id corpus-id score``, header optional), gzipped or not. A folder means a BEIR data set, of which
    ``qrels/<split>.tsv`` is read, or its ``qrels`` folder. Ids stay strings; negative grades are kept and interpreted
    by trec_eval. A repeated judgement is accepted. If TREC's second column names subtopics, the grade of a document is
    the highest one of its subtopics, which measures of diversity read. Raises :class:`InputError` with file and line
    for two grades of one pair and for lines that are not judgements.
    """
    path = Path(path)
    if path.is_dir():
        files = [path / "qrels" / f"{split}.tsv", path / f"{split}.tsv"]
        judgements = next((file for file in files if file.is_file()), None)
        if judgements is None:
            raise InputError(
                f"{path}: a folder without qrels/{split}.tsv; name the file with the judgements"
            )
        path = judgements
    qrels = Judgements()
    width = 0
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if not width:
            width = _width(line, where)
            if width == 3 and _grade(line.split("\t")[2]) is None:
                continue  # the header
        qid, subtopic, docid, grade = _judgement(line, width, where)
        first_grade = qrels.add(qid, docid, grade, subtopic)
        if first_grade != grade:
            raise InputError(
                f"{where}: document {docid!r} of query {qid!r} has grade {grade} here and {first_grade} before"
            )
    if not qrels:
        raise InputError(f"{path}: a header and no judgements")
    return qrels


def _width(line: str, where: str) -> int:
    """3 for BEIR, 4 for TREC, according to the first line."""
    if len(line.split("\t")) == 3:
        return 3
    if len(columns(line)) == 4:
        return 4
    raise InputError(
        f"{where}: expected 'qid 0 docid grade' (TREC) or 'query-id<tab>corpus-id<tab>score' (BEIR), got {line[:80]!r}"
    )


def _judgement(line: str, width: int, where: str) -> tuple[str, str, str, int]:
    """(query id, subtopic, docid, grade) of a line."""
    if width == 4:
        fields = columns(line)
    else:
        fields = [f.strip() for f in line.split("\t")]
        if any(len(columns(f)) != 1 for f in fields):
            raise InputError(
                f"{where}: an id that is empty or contains white space, which run files cannot represent"
            )
    if len(fields) != width:
        raise InputError(
            f"{where}: expected {width} columns as in the first line, got {len(fields)}"
        )
    grade = _grade(fields[-1])
    if grade is None:
        raise InputError(f"{where}: grade {fields[-1]!r} is not an integer")
    if abs(grade) > LARGEST_GRADE:
        raise InputError(
            f"{where}: grade {grade} is beyond {LARGEST_GRADE}; is this column really a grade?"
        )
    subtopic = fields[1] if width == 4 else NO_SUBTOPIC
    return fields[0], subtopic, fields[-2], grade


def _grade(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
