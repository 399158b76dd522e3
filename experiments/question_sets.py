"""Questions about one sentence of a passage, as collections in BEIR's layout (experiments/sentences-and-titles.md).

    python experiments/question_sets.py --fairytales FairytaleQAData --stories mctest --output FOLDER

``--fairytales`` and ``--stories`` are copies of uci-soe/FairytaleQAData and mcobzarenco/mctest, ``--covid`` is the file
200423_covidQA.json of deepset-ai/COVID-QA. Each becomes a folder of that name in ``--output``, which must not have it
yet.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dupmae_ir.collections.prepared import QUERIES, write_qrels, write_records
from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.io.documents.collection import LENGTH, OVERLAP
from dupmae_ir.io.documents.passages import TokenMeasure, structured_passages
from dupmae_ir.io.documents.readers.extracted import Extracted
from dupmae_ir.io.publishing import move_into_place
from dupmae_ir.models.word_pieces import read_word_pieces

QUESTIONS = 2000
"""Questions drawn of the fairy tales."""
_LONGEST_TITLE = 300
"""Characters of an article's first line, which is its title."""
_STORY = 2
"""Column of a story in MCTest's files; behind it, each question has five columns, the answers included."""
_QUESTION_COLUMNS = 5
_ONE_SENTENCE = "one: "
"""The beginning of questions that one sentence answers."""


@dataclass
class QuestionSet:
    """Documents by their ids, as (title, text), and questions as (text, ids of the passages that answer it)."""

    documents: dict[str, tuple[str, str]] = field(default_factory=dict)
    questions: list[tuple[str, list[str]]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/test.tsv``, completely or not at all.

        Raises :class:`InputError` if ``folder`` is there already, or if there is no question.
        """
        if folder.exists():
            raise InputError(f"{folder}: is there already; remove it, or name another --output")
        if not self.questions:
            raise InputError(f"{folder.name}: no questions found; is its source complete?")
        aside = folder.with_name(f".{folder.name}.writing")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        documents = []
        for docid, (title, text) in self.documents.items():
            documents.append({"_id": docid, "title": title, "text": text})
        queries = []
        answers = {}
        for number, (text, docids) in enumerate(self.questions):
            queries.append({"_id": str(number), "text": text})
            answers[str(number)] = dict.fromkeys(docids, 1)
        write_records(aside / "corpus.jsonl", documents)
        write_records(aside / QUERIES, queries)
        write_qrels(aside, "test", answers)
        move_into_place(aside, folder)


def read_fairytales(repository: Path) -> QuestionSet:
    """The sections of all tales, and :data:`QUESTIONS` of the questions that one section answers, drawn with seed 0."""
    found = QuestionSet()
    root = repository / "data-by-origin"
    for path in sorted(root.glob("section-stories/*/*-story.csv")):
        tale = path.name.removesuffix("-story.csv")
        for row in _rows(path):
            docid = f"{tale}#{row['section']}"
            found.documents[docid] = (tale.replace("-", " "), row["text"].strip())
    for path in sorted(root.glob("questions/*/*-questions.csv")):
        tale = path.name.removesuffix("-questions.csv")
        for row in _rows(path):
            docid = f"{tale}#{row['cor_section']}"
            if row["local-or-sum"] == "local" and docid in found.documents:
                found.questions.append((row["question"].strip(), [docid]))
    drawn = random.Random(0)
    found.questions = drawn.sample(found.questions, min(QUESTIONS, len(found.questions)))
    return found


def read_stories(repository: Path) -> QuestionSet:
    """All stories, without titles, and the questions that one sentence answers."""
    found = QuestionSet()
    for path in sorted((repository / "data" / "MCTest").glob("mc*.tsv")):
        for line in path.read_text(encoding="utf-8").splitlines():
            columns = line.split("\t")
            docid = columns[0]
            # Line ends of a story are written as two characters.
            found.documents[docid] = ("", columns[_STORY].replace("\\newline", "\n"))
            for question in columns[_STORY + 1 :: _QUESTION_COLUMNS]:
                if question.startswith(_ONE_SENTENCE):
                    found.questions.append((question.removeprefix(_ONE_SENTENCE), [docid]))
    return found


def read_covid(source: Path) -> QuestionSet:
    """The articles, cut into passages as a folder of documents is, and all questions; a passage answers a question if
    it contains the beginning of the answer."""
    found = QuestionSet()
    measure = read_word_pieces(None)
    assert measure is not None  # the embedded model has a tokenizer
    articles = json.loads(source.read_text(encoding="utf-8"))["data"]
    for number, article in enumerate(articles):
        for paragraph in article["paragraphs"]:
            text = paragraph["context"]
            title = measure.fitted(text.strip().split("\n")[0][:_LONGEST_TITLE])
            length = partial(_length, measure, title)
            spans = list(structured_passages(Extracted(text), length, OVERLAP, measure))
            for part, span in enumerate(spans):
                found.documents[f"{number}#{part}"] = (title, text[span.start : span.end])
            for question in paragraph["qas"]:
                start = question["answers"][0]["answer_start"]
                answering = []
                for part, span in enumerate(spans):
                    if span.start <= start < span.end:
                        answering.append(f"{number}#{part}")
                if answering:
                    found.questions.append((question["question"].strip(), answering))
    return found


def _length(measure: TokenMeasure, title: str, heading: str) -> int:  # noqa: ARG001 (articles have no headings)
    """Word pieces of a passage at most."""
    return measure.room(title, LENGTH)


READERS: dict[str, Callable[[Path], QuestionSet]] = {
    "fairytales": read_fairytales,
    "stories": read_stories,
    "covid": read_covid,
}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def make(args: argparse.Namespace) -> None:
    """Write the collections whose sources were given."""
    for name, read in READERS.items():
        source = getattr(args, name)
        if source is None:
            continue
        if not source.exists():
            raise InputError(f"{source}: no such file or folder")
        found = read(source)
        found.write(args.output / name)
        print(f"{name}: {len(found.documents):,} passages, {len(found.questions):,} questions")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in READERS:
        parser.add_argument(f"--{name}", type=Path, help="its source")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    return guarded(lambda: make(args), "question_sets.py")


if __name__ == "__main__":
    raise SystemExit(main())
