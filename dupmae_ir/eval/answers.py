"""``python -m dupmae_ir.eval.answers``: DPR's answer accuracy, the share of questions answered among the first k.

A question is answered by a passage whose text holds one of its answers, compared as DPR does (Karpukhin et al. 2020):
both in Unicode's NFD, cut into runs of letters, digits and marks and single other symbols, lower case, and the answer's
tokens one after the other among the passage's. Titles do not count (DPR's ``use_title`` is off). With ``--regex``
answers are regular expressions of the package ``regex``, as CuratedTREC's are there. One difference: an answer without
any token is in no text here and in every text there; the test questions of NQ and TriviaQA have none.
"""

from __future__ import annotations

import ast
import csv
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
collection is read once and its texts are judged as they pass; what is held in memory is the run, the answers and 11 to
23 bytes for each id of the collection (0.3 to 0.4 GB for Wikipedia's 21 million passages).
"""
EXAMPLE = """
python -m dupmae_ir.eval.answers --run nq.trec --answers dpr-nq/answers.jsonl --corpus dpr-nq/corpus.jsonl.gz
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
        help='JSON lines of {"_id": question, "answers": [...]}, or DPR\'s question<tab>[\'answer\', ...] lines '
        "(nq-test.qa.csv), whose ids are their numbers from 0",
        group="what",
        metavar="FILE",
    )
    corpus: str = option(
        help="the collection that was searched, DPR's psgs_w100.tsv.gz for instance", group="what", metavar="PATH"
    )
    k: tuple[int, ...] = option(DEPTHS, "depths", group="how", flag="-k")
    regex: bool = option(False, "answers are regular expressions", group="how")
    per_query: bool = option(False, "also print the rank of each question's first answer", group="output")
    output: str | None = option(None, "file to write instead of printing", group="output", metavar="FILE")
    quiet: bool = option(False, "no progress", group="output")
    json: bool = option(False, "the results as JSON", group="output")


def accuracy(
    run: Mapping[str, Sequence[Hit]],
    answers: str | Path | None,
    corpus: str | Path,
    depths: Iterable[int],
    *,
    regex: bool = False,
    quiet: bool = True,
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
    run: Mapping[str, Sequence[Hit]],
    answers: Mapping[str, Sequence[str]],
    corpus: str | Path,
    depth: int,
    *,
    regex: bool = False,
    quiet: bool = True,
) -> dict[str, int | None]:
    """Question id -> rank (from 1) of the first of its ``depth`` passages that answers it; None if none does."""
    from dupmae_ir.io.collections import read_collection

    matchers = {qid: _matcher(told, regex) for qid, told in answers.items()}
    wanted: dict[str, list[tuple[str, int]]] = {}
    for qid in answers:
        for rank, hit in enumerate(run.get(qid, ())[:depth], 1):
            wanted.setdefault(hit.docid, []).append((qid, rank))
    ranks: dict[str, int | None] = dict.fromkeys(answers)
    quoted = Path(corpus).name.removesuffix(".gz").endswith(".tsv")
    with progress("answers", "passages", quiet=quiet) as bar:
        for passage in read_collection(corpus):
            bar.update()
            asked = wanted.pop(passage.docid, None)
            if not asked:
                continue
            told = _unquoted(passage.text) if quoted else passage.text
            text = _normalised(told) if regex else _joined(told)
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


def _unquoted(text: str) -> str:
    """A cell of psgs_w100.tsv as DPR reads it, with Python's csv: without the quotes around it, inner ones once."""
    inner = text[1:-1].replace('""', "")
    whole = len(text) > 1 and text[0] == text[-1] == '"' and '"' not in inner
    return text[1:-1].replace('""', '"') if whole else text


def _matcher(answers: Sequence[str], regex: bool) -> Found:
    if not regex:
        # An answer without a token, such as an empty one, is in no text.
        needles = [joined for a in answers if len(joined := _joined(a)) > 1]
        return lambda text: any(needle in text for needle in needles)
    import regex as expressions

    flags = expressions.IGNORECASE | expressions.UNICODE | expressions.MULTILINE
    patterns = []
    for answer in answers:
        try:
            patterns.append(expressions.compile(_normalised(answer), flags))
        except expressions.error as e:
            raise InputError(f"the answer {answer!r} is no regular expression: {e}; leave out --regex?") from None
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
    try:
        # DPR writes and reads these with csv: a list that holds a " is quoted, and each " in it doubled.
        _, *cells = next(csv.reader([line], delimiter="\t"))
        return ast.literal_eval(cells[-1].strip()) if cells else None
    except (ValueError, SyntaxError, csv.Error):
        raise InputError(f"{where}: wants question<tab>['answer', ...], got {line[:60]!r}") from None


def run(config: AnswersConfig) -> dict[str, Any]:
    """Accuracies, first ranks, the numbers of questions, of those without answers or hits, and of the run's others."""
    from dupmae_ir.io.runs import read_run

    if not config.k or min(config.k) < 1:
        raise UsageError(f"-k {' '.join(map(str, config.k))}: depths are at least 1")
    answers, hits = read_answers(config.answers), read_run(config.run)
    if not answers.keys() & hits.keys():
        raise UsageError(
            f"{config.run} and {config.answers} share no question: {next(iter(hits))!r} and "
            f"{next(iter(answers))!r} are ids of different sets"
        )
    ranks = first_ranks(hits, answers, config.corpus, max(config.k), regex=config.regex, quiet=config.quiet)
    reached = {k: sum(rank is not None and rank <= k for rank in ranks.values()) for k in sorted(set(config.k))}
    return {
        "accuracy": {f"Acc@{k}": count / len(ranks) for k, count in reached.items()},
        "questions": len(ranks),
        "without_answers": sum(not a for a in answers.values()),
        "without_hits": sum(not hits.get(q) for q in answers),
        "only_in_run": len(hits.keys() - answers.keys()),
        "first": ranks,
    }


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir eval.answers")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("eval.answers", PURPOSE, EXAMPLE), AnswersConfig, argv)
    found = run(config)
    _write(config, json.dumps(found, ensure_ascii=False) if config.json else _text(config, found))
    say(
        f"{found['questions']} questions; {found['without_answers']} without an answer and {found['without_hits']} "
        "without hits count as not answered",
        config.quiet,
    )
    if others := found["only_in_run"]:
        say(f"note: {others} questions of {config.run} are not in {config.answers} and do not count", config.quiet)
    return 0


def _text(config: AnswersConfig, found: dict[str, Any]) -> str:
    rows = [[Path(config.run).name, *(f"{v:.4f}" for v in found["accuracy"].values())]]
    ranks = [f"{qid}\t{rank or '-'}" for qid, rank in found["first"].items()] if config.per_query else []
    return "\n".join([table(rows, ["run", *found["accuracy"]]), *ranks])


def _write(config: AnswersConfig, text: str) -> None:
    from dupmae_ir.io.publishing import atomic_write

    if config.output is None:
        sys.stdout.write(text + "\n")
        return
    with atomic_write(config.output) as file:
        file.write(text + "\n")
    say(f"answers: {config.output}", config.quiet)


if __name__ == "__main__":
    sys.exit(main())
