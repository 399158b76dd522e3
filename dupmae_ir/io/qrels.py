"""Relevance judgements in the formats of TREC and BEIR."""

from __future__ import annotations

from pathlib import Path

from dupmae_ir.errors import InputError
from dupmae_ir.io.lines import columns, numbered_lines

LARGEST_GRADE = 1000  #: trec_eval allocates a counter for every grade up to the largest, so a stray number hangs it


def read_qrels(path: str | Path, split: str = "test") -> dict[str, dict[str, int]]:
    """Query id -> docid -> grade, in file order.

    Reads TREC's four columns (``qid iteration docid grade``) and BEIR's three tab-separated ones
    (``query-id corpus-id score``, header optional), gzipped or not. A folder means a BEIR data set, of which
    ``qrels/<split>.tsv`` is read, or its ``qrels`` folder. Ids stay strings; negative grades are kept and interpreted
    by trec_eval. A repeated judgement is accepted. Raises :class:`InputError` with file and line for two grades of one
    pair and for lines that are not judgements.
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
    qrels: dict[str, dict[str, int]] = {}
    width = 0
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if not width:
            width = _width(line, where)
            if width == 3 and _grade(line.split("\t")[2]) is None:
                continue  # the header
        qid, docid, grade = _judgement(line, width, where)
        first_grade = qrels.setdefault(qid, {}).setdefault(docid, grade)
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


def _judgement(line: str, width: int, where: str) -> tuple[str, str, int]:
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
    return fields[0], fields[-2], grade


def _grade(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
