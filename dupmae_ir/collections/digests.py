"""Digests of topics and judgements that do not depend on the file format they were distributed in.

BEIR's archives, Anserini's copies and TREC's original files differ in order, white space, line layout and in whether
judgements without effect are listed. Only what affects the measures is digested.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from dupmae_ir.types import Qrels


def topics_digest(texts: Mapping[str, str]) -> str:
    """sha256 of the sorted ``qid<TAB>text`` lines (UTF-8, each ended by a newline), white space runs as one space."""
    return _digest(f"{qid}\t{' '.join(text.split())}" for qid, text in texts.items())


def qrels_digest(qrels: Qrels) -> str:
    """sha256 of the sorted ``qid docid grade`` lines with a grade above 0.

    Grades of 0 or less are left out: trec_eval's measures treat such a document like an unjudged one, and Anserini's
    files for TREC-COVID and Touché-2020 lack lines that BEIR's have.
    """
    return _digest(f"{q} {d} {grade}" for q, judged in qrels.items() for d, grade in judged.items() if grade > 0)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in sorted(lines)).encode()).hexdigest()
