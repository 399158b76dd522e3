"""Questions to folders of real documents: is the right file first, and is its first passage the right one?

    python benchmarks/folder_questions.py vault=FOLDER office=FOLDER mail=FOLDER encodings=FOLDER
    python benchmarks/folder_questions.py mine=my-docs --questions my-questions.jsonl
    python benchmarks/folder_questions.py click=FOLDER --rerank MODEL --rerank-weight 1

Each line of the questions has ``folder``, ``question``, ``file`` (relative to the folder) and ``phrase``, which the
right passage contains. A question to source code has the name of a ``definition``, too: each passage whose title ends
with it is right. Each folder is indexed with the embedded model, or another one, and searched in hybrid mode; a
reranker reads the first 50 hits, if one is given.
The folders of ``folder_questions.jsonl`` are public:

- vault: ``en`` of obsidianmd/obsidian-help;
- office: ``example-docs`` of Unstructured-IO/unstructured;
- mail: ``spec/fixtures/emails`` of mikel/mail;
- click: ``src/click`` of pallets/click; gin: gin-gonic/gin; express: ``lib`` of expressjs/express. These questions were
  written before any of them was asked, and before any model was trained on code;
- encodings: windows_1251, shift_jis, euc_kr, gb2312, iso8859_2, tis_620 and iso8859_9 of Ousret/char-dataset.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir import Searcher, build_index
from dupmae_ir.index.format.texts import StoredDocument

QUESTIONS = Path(__file__).with_suffix(".jsonl")
HITS = 10


class Question(NamedTuple):
    """A question to a folder: the file that answers it, and a phrase or the title's end of the passage that does."""

    folder: str
    question: str
    file: str
    phrase: str
    definition: str = ""


def read_questions(path: Path) -> list[Question]:
    """The questions of a file of JSON lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Question(**json.loads(line)) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--model", help="model name or folder; the embedded model if left out")
    parser.add_argument("--rerank", metavar="MODEL", help="a reranker, as of dupmae-ir search")
    parser.add_argument(
        "--rerank-weight",
        type=float,
        metavar="X",
        help="multiply its score by X and add the search's score",
    )
    args = parser.parse_args()
    settings = {"rerank": args.rerank, "rerank_weight": args.rerank_weight}
    questions = read_questions(args.questions)
    for pair in args.folders:
        name, _, folder = pair.partition("=")
        asked = [question for question in questions if question.folder == name]
        if not asked:
            parser.error(f"{args.questions} has no question to the folder {name!r}")
        print(report(folder, asked, args.model, settings), flush=True)


def report(
    folder: str, questions: list[Question], model: str | None, settings: dict[str, Any]
) -> str:
    """The counts for a folder, and a line for each question that was not answered first."""
    counts: Counter[str] = Counter()
    misses = []
    with tempfile.TemporaryDirectory() as temporary:
        index = str(Path(temporary) / "index")
        build_index(folder, index, model=model)
        searcher = Searcher.open(index, **settings)
        for question in questions:
            hits = searcher.search(question.question, HITS)
            passages = [searcher.document(hit.docid) for hit in hits]
            files = [str(passage.metadata["path"]) for passage in passages]
            is_file_first = files[0] == question.file
            is_passage_first = is_file_first and answers(passages[0], question)
            counts["file"] += is_file_first
            counts["passage"] += is_passage_first
            if not is_passage_first:
                rank = files.index(question.file) + 1 if question.file in files else None
                misses.append(f"  {question.question!r}: {hits[0].docid}; right file at {rank}")
    summary = f"{folder}: file first {counts['file']}, passage first {counts['passage']} of {len(questions)}"
    return "\n".join([summary, *misses])


def answers(passage: StoredDocument, question: Question) -> bool:
    """Whether a passage of the right file is the right one."""
    name = question.definition
    if name and passage.title.endswith((f": {name}", f".{name}")):
        return True
    return has_phrase(passage, question.phrase)


def has_phrase(passage: StoredDocument, phrase: str) -> bool:
    """Whether the title or the text of a passage has a phrase, whatever its line ends and capitals."""
    shown = f"{passage.title} {passage.text}"
    return " ".join(phrase.split()).lower() in " ".join(shown.split()).lower()


if __name__ == "__main__":
    main()
