"""nDCG@10 of BM25 and of an index's modes on a question-answering collection in several languages.

    python benchmarks/languages.py FOLDER --output languages.json      # FOLDER/xquad.de.json, ...: XQuAD's own files
    python benchmarks/languages.py FOLDER --languages de ru --every 6   # every sixth question
    python benchmarks/languages.py FOLDER --model multilingual          # the model for all languages

Four figures for each language, in the settings that ``encode`` and ``index bm25`` choose without flags: its own index
(bm25, impact, dense, hybrid); its questions to the English passages (``across``); its questions to one index of all
languages, where the passage in the language of the question is the right one (``together``), and where the same passage
in any language is (``any``). XQuAD is github.com/google-deepmind/xquad (CC BY-SA 4.0): 240 paragraphs of Wikipedia,
translated by professionals, and 1,190 questions on them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dupmae_ir import Searcher
from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.eval import evaluate
from dupmae_ir.index.config import Bm25Config
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.index.run import run_bm25
from dupmae_ir.models.language_detection import recognise
from dupmae_ir.types import Hit, Query

LANGUAGES = ("en", "de", "es", "ru", "ar", "zh", "hi", "tr", "el", "ro", "th", "vi")
MODES = ("impact", "dense", "hybrid")
MEASURE = "nDCG@10"
HITS = 100

Qrels = dict[str, dict[str, int]]


class Translation(NamedTuple):
    """The collection in one language; the paragraphs have the same numbers in all."""

    language: str
    paragraphs: dict[str, str]
    questions: list[Query]
    qrels: Qrels


def read(path: Path, language: str, every: int) -> Translation:
    """A file in SQuAD's layout, with every ``every``-th question."""
    paragraphs: dict[str, str] = {}
    questions = []
    qrels = {}
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            docid = f"{language}-{len(paragraphs)}"
            paragraphs[docid] = paragraph["context"]
            for question in paragraph["qas"]:
                questions.append(Query(question["id"], question["question"]))
                qrels[question["id"]] = {docid: 1}
    questions = questions[::every]
    return Translation(language, paragraphs, questions, {q.qid: qrels[q.qid] for q in questions})


def make_index(paragraphs: Mapping[str, str], model: str, work: Path) -> Searcher:
    """An index of passages, opened, in the new folder ``work``."""
    work.mkdir()
    corpus = work / "corpus.jsonl"
    lines = [json.dumps({"id": docid, "text": text}) + "\n" for docid, text in paragraphs.items()]
    corpus.write_text("".join(lines), encoding="utf-8")
    index = str(work / "index")
    encode(EncodeConfig(corpus=str(corpus), index=index, model=model, dtype="mixed", quiet=True))
    return Searcher.open(index)


def score(qrels: Qrels, run: Mapping[str, list[Hit]]) -> float:
    """The mean of the measure."""
    return round(evaluate(qrels, run, [MEASURE]).mean[MEASURE], 4)


def scores(
    searcher: Searcher, questions: Sequence[Query], qrels: Qrels, modes: Sequence[str]
) -> dict[str, float]:
    """The score of each mode."""
    return {mode: score(qrels, searcher.search(questions, HITS, mode)) for mode in modes}


def alone(translation: Translation, searcher: Searcher, work: Path) -> dict[str, object]:
    """The scores of an index of one language, and what it records."""
    run_bm25(Bm25Config(corpus=str(work / "corpus.jsonl"), index=str(work / "bm25"), quiet=True))
    bm25 = BM25Searcher(work / "bm25").search(translation.questions, HITS)
    return {
        "language": searcher.index.language,
        "dense_weight": searcher.part_weights[0],
        "bm25": score(translation.qrels, bm25),
        **scores(searcher, translation.questions, translation.qrels, MODES),
    }


def across(translation: Translation, english: Searcher) -> dict[str, float]:
    """The scores of the questions for the English passages."""
    qrels = {
        qid: {f"en-{docid.partition('-')[2]}": 1 for docid in relevant}
        for qid, relevant in translation.qrels.items()
    }
    return scores(english, translation.questions, qrels, ("dense", "hybrid"))


def in_all(translation: Translation, together: Searcher) -> dict[str, float]:
    """The scores of the questions in an index of all languages: of the own passage, and of it in any language."""
    run = together.search(translation.questions, HITS, "hybrid")
    merged: dict[str, list[Hit]] = {}
    for qid, hits in run.items():
        best: dict[str, Hit] = {}
        for hit in hits:
            number = hit.docid.partition("-")[2]
            best.setdefault(number, Hit(number, hit.score))
        merged[qid] = list(best.values())
    numbers = {
        qid: {docid.partition("-")[2]: 1 for docid in relevant}
        for qid, relevant in translation.qrels.items()
    }
    return {"together": score(translation.qrels, run), "any": score(numbers, merged)}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--languages", nargs="+", default=LANGUAGES)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--model", default="default")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()

    translations = []
    for language in arguments.languages:
        path = arguments.folder / f"xquad.{language}.json"
        translations.append(read(path, language, arguments.every))
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        english = None
        for translation in translations:
            language = translation.language
            searcher = make_index(translation.paragraphs, arguments.model, work / language)
            english = english or searcher
            result = alone(translation, searcher, work / language)
            texts = [*translation.paragraphs.values(), *(q.text for q in translation.questions)]
            found = [recognise(text) for text in texts]
            right = sum(r is not None and r.language == language for r in found)
            result["recognised"] = round(right / len(texts), 4)
            if language != "en" and english.index.language == "en":
                result |= {f"across_{k}": v for k, v in across(translation, english).items()}
            results[language] = result
            print(language, json.dumps(result), flush=True)
        if len(translations) > 1:
            paragraphs: dict[str, str] = {}
            for translation in translations:
                paragraphs |= translation.paragraphs
            together = make_index(paragraphs, arguments.model, work / "together")
            print("together", together.index.language, together.index.languages, flush=True)
            for translation in translations:
                found_in_all = in_all(translation, together)
                results[translation.language] |= found_in_all
                print(translation.language, json.dumps(found_in_all), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
