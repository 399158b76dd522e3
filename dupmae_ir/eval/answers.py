"""``python -m dupmae_ir.eval.answers``: DPR's answer accuracy, the share of questions answered among the first k.

A question is answered by a passage whose text holds one of its answers, compared as DPR does (Karpukhin et al. 2020):
both in Unicode's NFD, cut into runs of letters, digits and marks and single other symbols, lower case, and the answer's
tokens one after the other among the passage's. Titles do not count. With ``--regex`` answers are regular expressions,
as CuratedTREC's are.
"""

from __future__ import annotations

import ast
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say, table
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.types import Hit

PURPOSE = """
The share of questions that one of the first k passages answers: DPR's top-k accuracy, for NQ and TriviaQA. The
collection is read once; what is held in memory is the hits' ids and the answers.
"""
EXAMPLE = """
python -m dupmae_ir.eval.answers --run nq.trec --answers dpr-nq/answers.jsonl --corpus dpr-nq/psgs_w100.tsv.gz
"""
DEPTHS = (1, 5, 20, 50, 100)
_BETWEEN = "\x1f"
"""Stands between tokens; no token holds it, for control characters are no tokens."""
_TOKEN = r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]"
SHOWN = 3

Found = Callable[[str], bool]


@dataclass(frozen=True)
class AnswersConfig:
    """Everything that ``python -m dupmae_ir.eval.answers`` can be told."""

    run: str = option(help="run file", group="what", metavar="FILE")
    answers: str = option(
        help='JSON lines of {"_id": question, "answers": [...]}, or DPR\'s question<tab>[\'answer\', ...] lines, whose '
        "ids are their numbers from 0", group="what", metavar="FILE",
    )
    corpus: str = option(help="the collection that was searched", group="what", metavar="PATH")
    k: tuple[int, ...] = option(DEPTHS, "depths", group="how", flag="-k")
    regex: bool = option(False, "answers are regular expressions", group="how")
    per_query: bool = option(False, "also print the rank of each question's first answer", group="output")
    quiet: bool = option(False, "no progress", group="output")
    json: bool = option(False, "print the results as JSON", group="output")


def accuracy(
    run: Mapping[str, Sequence[Hit]], answers: str | Path | None, corpus: str | Path, depths: Iterable[int],
    *, regex: bool = False, quiet: bool = True,
) -> dict[str, dict[str, float]]:
    """``Acc@k`` -> question id -> 1 if one of its first k passages answers it, else 0. Questions without hits count 0.

    Raises :class:`InputError` for hits that the collection lacks.
    """
    if answers is None:
        raise UsageError("answer accuracy needs a file of answers; the collection has none")
    depths = sorted(set(depths))
    ranks = first_ranks(run, read_answers(answers), corpus, depths[-1], regex=regex, quiet=quiet)
    return {f"Acc@{k}": {q: float(rank is not None and rank <= k) for q, rank in ranks.items()} for k in depths}


def first_ranks(
    run: Mapping[str, Sequence[Hit]], answers: Mapping[str, Sequence[str]], corpus: str | Path, depth: int,
    *, regex: bool = False, quiet: bool = True,
) -> dict[str, int | None]:
    """Question id -> rank (from 1) of the first of its ``depth`` passages that answers it; None if none does."""
    from dupmae_ir.io.collections import read_collection

    matchers = {qid: _matcher(told, regex) for qid, told in answers.items()}
    wanted: dict[str, list[tuple[str, int]]] = {}
    for qid in answers:
        for rank, hit in enumerate(run.get(qid, ())[:depth], 1):
            wanted.setdefault(hit.docid, []).append((qid, rank))
    ranks: dict[str, int | None] = dict.fromkeys(answers)
    with progress("answers", "passages", quiet=quiet) as bar:
        for passage in read_collection(corpus):
            bar.update()
            asked = wanted.pop(passage.docid, None)
            if not asked:
                continue
            text = _normalised(passage.text) if regex else _joined(passage.text)
            for qid, rank in asked:
                best = ranks[qid]
                if (best is None or rank < best) and matchers[qid](text):
                    ranks[qid] = rank
            if not wanted:
                break
    if wanted:
        some = ", ".join(sorted(wanted)[:SHOWN])
        raise InputError(f"{corpus}: lacks {len(wanted)} passages of the run ({some}, ...); is it what was searched?")
    return ranks


def has_answer(answers: Sequence[str], text: str, regex: bool = False) -> bool:
    """Does ``text`` hold one of ``answers``, as DPR compares them?"""
    return _matcher(answers, regex)(_normalised(text) if regex else _joined(text))


def _matcher(answers: Sequence[str], regex: bool) -> Found:
    if not regex:
        # An answer without a token, such as an empty one, is in no text.
        needles = [joined for a in answers if len(joined := _joined(a)) > 1]
        return lambda text: any(needle in text for needle in needles)
    import regex as expressions

    flags = expressions.IGNORECASE | expressions.UNICODE | expressions.MULTILINE
    try:
        patterns = [expressions.compile(_normalised(a), flags) for a in answers]
    except expressions.error as e:
        raise InputError(f"an answer is no regular expression: {e}") from None
    return lambda text: any(p.search(text) for p in patterns)


def _normalised(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def _joined(text: str) -> str:
    """Tokens in lower case between separators, so that tokens in a row are a substring."""
    return _BETWEEN + "".join(f"{t}{_BETWEEN}" for t in _tokens().findall(_normalised(text))).lower()


@cache
def _tokens() -> Any:
    import regex

    return regex.compile(_TOKEN, regex.UNICODE)


def read_answers(path: str | Path) -> dict[str, list[str]]:
    """Question id -> its answers, from our JSON lines or DPR's lines. Raises :class:`InputError` with file and line."""
    found: dict[str, list[str]] = {}
    for number, line in numbered_lines(Path(path)):
        where = f"{path}:{number}"
        ours = line.lstrip().startswith("{")
        qid, told = _from_json(line, where) if ours else (str(len(found)), _from_dpr(line, where))
        if not isinstance(told, list) or not all(isinstance(a, str) for a in told):
            raise InputError(f"{where}: the answers are no list of texts")
        if qid in found:
            raise InputError(f"{where}: question {qid!r} stands twice")
        found[qid] = told
    return found


def _from_json(line: str, where: str) -> tuple[str, Any]:
    try:
        row = json.loads(line)
        return str(row["_id"]), row["answers"]
    except ValueError as e:
        raise InputError(f"{where}: not valid JSON: {e}") from None
    except KeyError as e:
        raise InputError(f"{where}: no {e} in it; wants _id and answers") from None


def _from_dpr(line: str, where: str) -> Any:
    _, tab, told = line.rpartition("\t")
    try:
        return ast.literal_eval(told.strip()) if tab else None
    except (ValueError, SyntaxError):
        raise InputError(f"{where}: wants question<tab>['answer', ...], got {line[:60]!r}") from None


def run(config: AnswersConfig) -> dict[str, Any]:
    """Accuracies, the number of questions, of those without answers or hits, and the first ranks."""
    from dupmae_ir.io.runs import read_run

    if not config.k or min(config.k) < 1:
        raise UsageError(f"-k {' '.join(map(str, config.k))}: depths are at least 1")
    answers, hits = read_answers(config.answers), read_run(config.run)
    if not answers.keys() & hits.keys():
        raise UsageError(f"{config.run} and {config.answers} share no question: {next(iter(hits))!r} and "
                         f"{next(iter(answers))!r} are ids of different sets")
    ranks = first_ranks(hits, answers, config.corpus, max(config.k), regex=config.regex, quiet=config.quiet)
    reached = {k: sum(rank is not None and rank <= k for rank in ranks.values()) for k in sorted(set(config.k))}
    return {
        "accuracy": {f"Acc@{k}": count / len(ranks) for k, count in reached.items()}, "questions": len(ranks),
        "without_answers": sum(not a for a in answers.values()),
        "without_hits": sum(not hits.get(q) for q in answers), "first": ranks,
    }


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir eval.answers")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("eval.answers", PURPOSE, EXAMPLE), AnswersConfig, argv)
    found = run(config)
    if config.json:
        sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
        return 0
    rows = [[Path(config.run).name, *(f"{v:.4f}" for v in found["accuracy"].values())]]
    sys.stdout.write(table(rows, ["run", *found["accuracy"]]) + "\n")
    if config.per_query:
        sys.stdout.writelines(f"{qid}\t{rank or '-'}\n" for qid, rank in found["first"].items())
    say(f"{found['questions']} questions; {found['without_answers']} without an answer and {found['without_hits']} "
        "without hits count as not answered", config.quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
