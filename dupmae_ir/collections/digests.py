"""Digests that say whether topics and judgements are the ones the papers used, whatever file they came in.

BEIR's archives, Anserini's copies and TREC's own files differ in order, white space, line layout and in whether
judgements that count for nothing are listed. What is digested is what changes a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from dupmae_ir.types import Qrels


def topics_digest(texts: Mapping[str, str]) -> str:
    """sha256 of the sorted ``qid<TAB>text`` lines (UTF-8, a newline after each), white space as one blank."""
    return _digest(f"{qid}\t{' '.join(text.split())}" for qid, text in texts.items())


def qrels_digest(qrels: Qrels) -> str:
    """sha256 of the sorted ``qid docid grade`` lines of the grades above 0.

    A grade of 0 or less is left out: to trec_eval's measures it is what a document without a judgement is, and
    Anserini's files of TREC-COVID and Touché-2020 lack such lines that BEIR's have.
    """
    return _digest(f"{q} {d} {grade}" for q, found in qrels.items() for d, grade in found.items() if grade > 0)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in sorted(lines)).encode()).hexdigest()
