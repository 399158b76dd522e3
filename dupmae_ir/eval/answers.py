"""DPR's answer accuracy: the share of queries with an answer in one of the first k passages.

A passage answers a query if its text contains one of the query's answers, compared as in DPR (Karpukhin et al. 2020):
both in Unicode NFD, split into runs of letters, digits and marks and other single symbols, in lower case, with the
answer's tokens in sequence among the passage's. Titles are not searched (DPR's ``use_title`` is off). With ``regex``,
answers are regular expressions of the package ``regex``, as for CuratedTREC. One difference: DPR finds an answer
without tokens in every text, here in none; the test queries of NQ and TriviaQA have none.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from dupmae_ir.collections.convert import answered_query, checked_answers
from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions, input_option, option, output_option
from dupmae_ir.console import progress, say, table
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.lines import json_record, numbered_lines
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.runs import read_run
from dupmae_ir.types import Hit

MAX_NAMED = 3  #: ids named in an error
_SEPARATOR = "\x1f"
"""Separates tokens; no token contains it, since control characters are not tokens."""
_TOKEN = r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]"


@dataclass(frozen=True, kw_only=True)
class AnswersConfig(OutputOptions):
    """The share of queries that one of the first k passages answers: DPR's top-k accuracy, for NQ and TriviaQA.
    The collection is read once. Memory holds the run, the answers and 11 to 23 bytes per id of the collection (0.3 to
    0.4 GB for Wikipedia's 21 million passages).

    Examples:
        dupmae-ir eval.answers --run nq.trec --answers dpr-nq/answers.jsonl --corpus dpr-nq/corpus.jsonl.gz
    """

    run: str = input_option(help="run file", metavar="FILE")
    answers: str = input_option(
        help='JSON lines of {"_id": query id, "answers": [...]}, or DPR\'s question<tab>[\'answer\', ...] lines '
        "(nq-test.qa.csv), whose ids are their line numbers from 0",
        metavar="FILE",
    )
    corpus: str = input_option(
        help="the collection that was searched, for example DPR's psgs_w100.tsv.gz", metavar="PATH"
    )
    k: tuple[int, ...] = option(
        (1, 5, 20, 50, 100), "depths", group="accuracy", flag="-k", at_least=1
    )
    regex: bool = option(False, "answers are regular expressions", group="accuracy")
    per_query: bool = output_option(False, "also print the rank of each query's first answer")
    output: str | None = output_option(None, "file to write instead of printing", metavar="FILE")


def accuracy(
    run: Mapping[str, Sequence[Hit]],
    answers: str | Path | None,
    corpus: str | Path,
    depths: Iterable[int],
    *,
    regex: bool = False,
    quiet: bool = True,
) -> dict[str, dict[str, float]]:
    """``Acc@k`` -> query id -> 1 if one of its first k passages answers it, else 0; 0 for queries without hits.

    Raises :class:`InputError` for hits that the collection does not contain.
    """
    if answers is None:
        raise UsageError("answer accuracy needs a file of answers; the collection has none")
    depths = sorted(set(depths))
    ranks = first_ranks(run, read_answers(answers), corpus, depths[-1], regex=regex, quiet=quiet)
    accuracies: dict[str, dict[str, float]] = {}
    for k in depths:
        accuracies[f"Acc@{k}"] = {qid: float(_is_within(rank, k)) for qid, rank in ranks.items()}
    return accuracies


def _is_within(rank: int | None, k: int) -> bool:
    return rank is not None and rank <= k


class _RankedQuery(NamedTuple):
    """A query with the rank at which its list has a passage."""

    qid: str
    rank: int


def first_ranks(
    run: Mapping[str, Sequence[Hit]],
    answers: Mapping[str, Sequence[str]],
    corpus: str | Path,
    depth: int,
    *,
    regex: bool = False,
    quiet: bool = True,
) -> dict[str, int | None]:
    """Query id -> rank (from 1) of the first of its ``depth`` passages that answers it; None if none does."""
    matchers = {qid: matcher(texts, regex) for qid, texts in answers.items()}
    # A passage may be among the hits of several queries. The collection is read once, so passages lead to queries.
    missing: dict[str, list[_RankedQuery]] = {}
    for qid in answers:
        for rank, hit in enumerate(run.get(qid, ())[:depth], 1):
            missing.setdefault(hit.docid, []).append(_RankedQuery(qid, rank))

    ranks: dict[str, int | None] = dict.fromkeys(answers)
    is_tsv = Path(corpus).name.removesuffix(".gz").endswith(".tsv")
    with progress("answers", "passages", quiet=quiet) as bar:
        for passage in read_collection(corpus):
            bar.update()
            queries = missing.pop(passage.docid, None)
            if not queries:
                continue
            raw = _unquoted(passage.text) if is_tsv else passage.text
            text = searchable(raw, regex)
            for qid, rank in queries:
                # Passages come in the collection's order, so a match may follow one of a worse rank.
                best = ranks[qid]
                if (best is None or rank < best) and matchers[qid](text):
                    ranks[qid] = rank
            if not missing:
                break
    if missing:
        names = ", ".join(sorted(missing)[:MAX_NAMED])
        raise InputError(
            f"{corpus}: {len(missing)} passages of the run are missing ({names}, ...); was another collection searched?"
        )
    return ranks


def _unquoted(text: str) -> str:
    """A cell of psgs_w100.tsv as DPR reads it with Python's csv: outer quotes removed, doubled inner quotes single."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    inner = text[1:-1]
    # The text begins with one quotation and ends with another; the outer quotes do not enclose it.
    if '"' in inner.replace('""', ""):
        return text
    return inner.replace('""', '"')


def matcher(answers: Sequence[str], regex: bool) -> Callable[[str], bool]:
    """A function of :func:`searchable` text: whether it contains one of ``answers``."""
    if not regex:
        # An answer without tokens, such as an empty one, is in no text.
        token_sequences = (_joined(answer) for answer in answers)
        needles = [tokens for tokens in token_sequences if tokens != _SEPARATOR]
        return lambda text: any(needle in text for needle in needles)
    import regex as expressions

    flags = expressions.IGNORECASE | expressions.UNICODE | expressions.MULTILINE
    patterns = []
    for answer in answers:
        try:
            patterns.append(expressions.compile(_normalised(answer), flags))
        except expressions.error as e:
            raise InputError(
                f"the answer {answer!r} is not a regular expression: {e}; if it is plain text, omit `regex`"
            ) from None
    return lambda text: any(pattern.search(text) for pattern in patterns)


def searchable(text: str, regex: bool = False) -> str:
    """``text`` in the form that :func:`matcher` searches."""
    if regex:
        return _normalised(text)
    return _joined(text)


def _normalised(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def _joined(text: str) -> str:
    """Tokens in lower case between separators, so that tokens in a row are a substring."""
    import regex

    tokens = regex.findall(_TOKEN, _normalised(text))
    return _SEPARATOR + "".join(f"{token}{_SEPARATOR}" for token in tokens).lower()


def read_answers(path: str | Path) -> dict[str, list[str]]:
    """Query id -> its answers, from JSON lines or DPR's lines. Raises :class:`InputError` with file and line."""
    answers: dict[str, list[str]] = {}
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if line.lstrip().startswith("{"):
            row = json_record(line, where)
            missing = {"_id", "answers"} - row.keys()
            if missing:
                raise InputError(f"{where}: {min(missing)!r} is missing; expected _id and answers")
            qid = str(row["_id"])
            texts = checked_answers(row["answers"], where)
        else:
            qid, _, texts = answered_query(line, number, path)
        if qid in answers:
            raise InputError(f"{where}: query {qid!r} appears twice")
        answers[qid] = texts
    return answers


@dataclass(frozen=True)
class AnswerCounts:
    """The result of the command."""

    accuracy: dict[str, float]  #: ``Acc@k`` -> share of the queries
    questions: int
    without_answers: int
    without_hits: int
    only_in_run: int  #: queries of the run that have no line of answers; they do not count
    first: dict[str, int | None]  #: query id -> rank of its first answer


def run(config: AnswersConfig) -> AnswerCounts:
    """The work of ``dupmae-ir eval.answers``."""
    answers = read_answers(config.answers)
    hits = read_run(config.run)
    if not answers.keys() & hits.keys():
        raise UsageError(
            f"{config.run} and {config.answers} have no query in common: {next(iter(hits))!r} and "
            f"{next(iter(answers))!r} are ids of different sets"
        )
    ranks = first_ranks(
        hits, answers, config.corpus, max(config.k), regex=config.regex, quiet=config.quiet
    )
    accuracies = {}
    for k in sorted(set(config.k)):
        answered = sum(_is_within(rank, k) for rank in ranks.values())
        accuracies[f"Acc@{k}"] = answered / len(ranks)
    counts = AnswerCounts(
        accuracy=accuracies,
        questions=len(ranks),
        without_answers=sum(not texts for texts in answers.values()),
        without_hits=sum(not hits.get(qid) for qid in answers),
        only_in_run=len(hits.keys() - answers.keys()),
        first=ranks,
    )
    if config.output is not None:
        with atomic_write(config.output) as file:
            file.write(_text(config, counts) + "\n")
        say(f"answers: {config.output}", config.quiet)
    return counts


def _text(config: AnswersConfig, counts: AnswerCounts) -> str:
    """The result as a table, or as JSON."""
    if config.json:
        return json.dumps(asdict(counts), ensure_ascii=False)
    values = [f"{value:.4f}" for value in counts.accuracy.values()]
    lines = [table([[Path(config.run).name, *values]], ["run", *counts.accuracy])]
    if config.per_query:
        for qid, rank in counts.first.items():
            lines.append(f"{qid}\t{rank or '-'}")
    return "\n".join(lines)


def _summarize(config: AnswersConfig, counts: AnswerCounts) -> str:
    line = (
        f"{counts.questions} queries; {counts.without_answers} without an answer and {counts.without_hits} "
        "without hits count as not answered"
    )
    if counts.only_in_run:
        line += f"\nnote: {counts.only_in_run} queries of {config.run} are not in {config.answers} and do not count"
    return line


def _show(config: AnswersConfig, counts: AnswerCounts) -> str:
    if config.output:
        return ""
    return _text(config, counts)


main = Command(
    "eval.answers",
    AnswersConfig,
    "dupmae_ir.eval.answers:run",
    summarize=_summarize,
    show=_show,
    as_json=_show,
)

if __name__ == "__main__":
    main.exit()
