"""An index of several languages: recognised, recorded, searched exactly as each alone, changed, joined, resumed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from support.lexical_models import make_lexical

from dupmae_ir import Searcher
from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode import document_languages as languages_module
from dupmae_ir.encode import run as run_module
from dupmae_ir.encode.changes import run_add
from dupmae_ir.encode.document_languages import document_languages, weighted
from dupmae_ir.encode.executors import ThisProcess
from dupmae_ir.encode.merge import MergeConfig
from dupmae_ir.encode.merging import run as merge
from dupmae_ir.encode.reading import FEWEST, vector_weight
from dupmae_ir.encode.run import run as encode
from dupmae_ir.index.changes.changes import run_compact, run_delete
from dupmae_ir.index.config import AddConfig, CompactConfig, DeleteConfig
from dupmae_ir.index.index import Index
from dupmae_ir.models import load_encoder
from dupmae_ir.models.heads import lexical
from dupmae_ir.models.language_detection import language_of_document
from dupmae_ir.types import Document, Query, Representation

ENGLISH = {
    "en1": "The boiler shows an error if there is no water in the pipe, and it does not start again.",
    "en2": "Bees find their way home by the position of the sun, even if clouds hide it.",
    "en3": "The contract ends three months after one of the parties has told the other in writing.",
    "en4": "A heap queue sorts a list while it grows, so the smallest item is always the first.",
    "en5": "Trains to Berlin leave at eight in the morning, and there is another one at noon.",
}
GERMAN = {
    "de1": "Die Heizung zeigt einen Fehler an, wenn kein Wasser in der Leitung ist, und startet nicht mehr.",
    "de2": "Der Zug nach Berlin fährt um acht Uhr ab, wenn es nicht regnet.",
    "de3": "Wer den Vertrag nicht mehr will, kann ihn mit einer Frist von drei Monaten kündigen.",
}
CHINESE = {
    "zh1": "管道里没有水时，锅炉会显示错误，并且不会再次启动。",
    "zh2": "开往柏林的火车八点出发。",
}
FRENCH = (
    "La chaudière affiche une erreur quand il n'y a pas d'eau dans le tuyau, et ne démarre plus."
)
ALL = ENGLISH | GERMAN | CHINESE
QUERIES = [
    Query("q1", "Why does the boiler show an error?"),
    Query("q2", "Wann fährt der Zug nach Berlin?"),
    Query("q3", "锅炉 错误"),
    Query("q4", "Berlin"),
    Query("q5", "contract months"),
    Query("q6", ""),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    # So many buckets that no two stems of these texts share one.
    folder = tmp_path_factory.mktemp("languages")
    return str(make_lexical(folder, buckets=1 << 17, top_k=99))


def write(path: Path, texts: dict[str, str], **metadata: object) -> str:
    lines = [json.dumps({"id": i, "text": t, **metadata}) + "\n" for i, t in texts.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def make(folder: Path, model: str, texts: dict[str, str] = ALL, **settings: object) -> str:
    corpus = write(folder.with_suffix(".jsonl"), texts)
    values = {"corpus": corpus, "index": str(folder), "model": model, "quiet": True, **settings}
    encode(EncodeConfig(**values))
    return str(folder)


@pytest.fixture
def mixed(tmp_path, model):
    return make(tmp_path / "mixed", model)


def test_each_document_has_its_language(mixed):
    index = Index.open(mixed)
    assert index.language == "en"
    assert index.languages == {"de": 3, "zh": 2}
    found = {docid: index.texts.get(row).metadata["lang"] for row, docid in enumerate(index.docids)}
    assert found == {docid: docid[:2] for docid in ALL}
    searcher = Searcher.open(mixed)
    hits = searcher.search("Berlin", filter='lang = "de"')
    assert {hit.docid for hit in hits} <= set(GERMAN)
    assert {hit.docid for hit in searcher.search("Berlin", filter='lang = "en"')} == set(ENGLISH)
    assert [h.docid for h in searcher.search("Heizungen", mode="impact")] == ["de1"]
    assert [h.docid for h in searcher.search("锅炉", mode="impact")] == ["zh1"]
    assert {h.docid for h in searcher.search("Berlin", mode="impact")} == {"de2", "en5"}


def test_documents_have_the_scores_of_an_index_of_their_language(
    tmp_path, mixed, model, monkeypatch
):
    monkeypatch.setattr(lexical, "MIN_DOCUMENTS", 0)
    together = Searcher.open(mixed)
    # Queries in the language of the texts: of one in another language, function words are left out here alone.
    for texts, language, own in (
        (ENGLISH, "en", ("q1", "q4", "q5")),
        (GERMAN, "de", ("q2", "q4")),
        (CHINESE, "zh", ("q3",)),
    ):
        alone = Searcher.open(make(tmp_path / language, model, texts, language=language))
        for query in QUERIES:
            if query.qid not in own:
                continue
            expected = {h.docid: h.score for h in alone.search(query.text, 10, "impact")}
            hits = together.search(query.text, 20, "impact")
            found = {h.docid: h.score for h in hits if h.docid in texts}
            assert found == expected
            assert found


def test_english_hits_are_those_without_the_other_languages(tmp_path, mixed, model):
    alone = Searcher.open(make(tmp_path / "alone", model, ENGLISH))
    together = Searcher.open(mixed)
    for query in ("boiler error", "How do bees find home?", "contract"):
        hits = [hit for hit in together.search(query, 20) if hit.docid in ENGLISH]
        assert hits == alone.search(query, 20)


def test_every_query_has_the_dimensions_of_the_index(mixed):
    """Also one without a word of another language, and one without any."""
    searcher = Searcher.open(mixed)
    for query in QUERIES:
        weights = searcher.encoder.encode_queries([query.text]).ot
        assert weights.shape == (1, len(searcher.index.terms))


def test_an_index_of_one_language_is_what_it_was(tmp_path, model):
    recognised = Index.open(make(tmp_path / "auto", model, ENGLISH))
    chosen = Index.open(make(tmp_path / "chosen", model, ENGLISH, language="en"))
    assert recognised.digest == chosen.digest
    assert recognised.texts.columns == []
    assert recognised.languages == {}


def test_lists_are_those_of_all_sums(mixed):
    """Also with vectors whose lengths differ a thousandfold."""
    searcher = Searcher.open(mixed)
    index = searcher.index
    texts = [index.texts.get(row).text for row in range(index.documents)]
    plain = np.linalg.norm(searcher.encoder.encode_documents(texts).cls, axis=1)
    vectors = np.concatenate([np.asarray(s.vectors) for s in index.segments]).astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    factors = index.meta["encoder"]["languages"]
    for row, docid in enumerate(index.docids):
        expected = factors.get(docid[:2], 1.0) * plain[row]
        assert lengths[row] == pytest.approx(expected, rel=1e-5)
    for answer in searcher.answers(QUERIES[:-1], 4):
        query = answer.query
        encoded = searcher.encoder.encode_queries([query.text])
        dense = vectors @ encoded.cls[0].astype(np.float64)
        dense_weight, _ = searcher.part_weights
        scores = {}
        for row, docid in enumerate(index.docids):
            impact = searcher.explain(query.text, docid).impact
            scores[docid] = dense_weight * dense[row] + impact
        best = sorted(scores, key=lambda docid: (-scores[docid], docid))[:4]
        assert [hit.docid for hit in answer.hits] == best
        assert answer.report.exact


def test_languages_come_and_go(tmp_path, model):
    """What is added in a new language is found by its stems; what is deleted is not counted."""
    index = make(tmp_path / "i", model, ENGLISH)
    run_add(AddConfig(index=index, corpus=write(tmp_path / "f.jsonl", {"fr1": FRENCH}), quiet=True))
    opened = Searcher.open(index)
    assert opened.index.languages == {"fr": 1}
    assert opened.document("fr1").metadata == {"lang": "fr"}
    assert opened.document("en1").metadata == {"lang": "en"}
    assert [h.docid for h in opened.search("chaudières", mode="impact")] == ["fr1"]
    before = opened.search("chaudières")
    more = write(tmp_path / "g.jsonl", {"de1": GERMAN["de1"], "fr2": FRENCH})
    run_add(AddConfig(index=index, corpus=more, quiet=True))
    assert Index.open(index).languages == {"fr": 2, "de": 1}
    run_delete(DeleteConfig(index=index, ids=("de1", "fr2"), quiet=True))
    assert Index.open(index).languages == {"fr": 1}
    assert Searcher.open(index).search("chaudières") == before
    run_compact(CompactConfig(index=index, quiet=True))
    assert Index.open(index).languages == {"fr": 1}
    assert Searcher.open(index).search("chaudières") == before


def test_the_same_documents_added_later_are_found_alike(tmp_path, mixed, model):
    later = make(tmp_path / "later", model, ENGLISH)
    corpus = write(tmp_path / "rest.jsonl", GERMAN | CHINESE)
    run_add(AddConfig(index=later, corpus=corpus, quiet=True))
    for query in QUERIES:
        assert Searcher.open(later).search(query.text) == Searcher.open(mixed).search(query.text)


def test_shards_and_resumed_runs_have_the_same_bits(tmp_path, model, monkeypatch):
    """The factor of a language is that of the first window that has it, for every share and after every kill."""
    texts = {f"{docid}-{n}": text for docid, text in ALL.items() for n in range(3)}
    whole = make(tmp_path / "whole", model, texts, window=4)
    shards = []
    for number in range(2):
        folder = tmp_path / f"s{number}"
        make(folder, model, texts, window=4, shard=f"{number}/2")
        shards.append(str(folder))
    merge(MergeConfig(shards=tuple(shards), index=str(tmp_path / "joined"), quiet=True))
    assert Index.open(tmp_path / "joined").digest == Index.open(whole).digest
    assert Index.open(tmp_path / "joined").languages == Index.open(whole).languages

    from dupmae_ir.encode.windows import WindowFiles

    plain = WindowFiles.save
    saved = []

    def dying(self, window, contents):
        if len(saved) == 5:
            raise KeyboardInterrupt
        saved.append(window.number)
        plain(self, window, contents)

    monkeypatch.setattr(WindowFiles, "save", dying)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "killed", model, texts, window=4)
    monkeypatch.undo()
    assert Index.open(make(tmp_path / "killed", model, texts, window=4)).digest == (
        Index.open(whole).digest
    )


def test_several_processes_have_the_same_bits(tmp_path, model):
    texts = {f"{docid}-{n}": text for docid, text in ALL.items() for n in range(3)}
    one = make(tmp_path / "one", model, texts, window=4)
    two = make(tmp_path / "two", model, texts, window=4, devices="cpu,cpu")
    assert Index.open(one).digest == Index.open(two).digest


def test_folders_are_searched_as_one(tmp_path, model):
    settings = {"scale": 100.0}
    left = make(tmp_path / "left", model, ENGLISH, **settings)
    more = {f"en9{n}": text for n, text in enumerate(ENGLISH.values())}
    right = make(tmp_path / "right", model, more | GERMAN, **settings)
    index = Index.open(left, right)
    assert index.languages == {"de": 3}
    hits = Searcher.open([left, right]).search("Heizungen", mode="impact")
    assert [hit.docid for hit in hits] == ["de1"]


def test_a_declared_language_is_kept_and_other_values_are_the_collections(tmp_path, model):
    assert document_languages([Document("a", GERMAN["de1"], metadata={"lang": "fr"})], "en") == [
        "fr"
    ]
    assert document_languages([Document("a", GERMAN["de1"], metadata={"lang": 7})], "en") == ["en"]
    corpus = write(tmp_path / "c.jsonl", GERMAN, lang="deu")
    index = str(tmp_path / "i")
    encode(EncodeConfig(corpus=corpus, index=index, model=model, quiet=True))
    assert Index.open(index).texts.get(0).metadata == {"lang": "deu"}


@pytest.mark.parametrize("settings", [{"language": "en"}, {"store_texts": False}])
def test_a_chosen_language_is_that_of_all(tmp_path, model, settings):
    index = make(tmp_path / "i", model, **settings)
    assert Index.open(index).languages == {}
    assert "languages" not in Index.open(index).meta["encoder"]
    run_add(AddConfig(index=index, corpus=write(tmp_path / "f.jsonl", {"fr1": FRENCH}), quiet=True))
    assert Index.open(index).languages == {}


def test_what_is_said(tmp_path, model, capsys):
    make(tmp_path / "i", model, quiet=False)
    said = capsys.readouterr().err
    assert "languages: English 50%, German 30%, Chinese 20%; the words of a document" in said
    assert "note: the model knows little of German, Chinese: words decide there." in said
    assert "encode with --model multilingual" in said
    make(tmp_path / "e", model, ENGLISH, quiet=False)
    said = capsys.readouterr().err
    assert "language" not in said


class Reads:
    """An encoder whose vectors find the other half of every text, or of none."""

    def __init__(self, finds: bool, multilingual: bool = False) -> None:
        self.settings = dataclasses.replace(
            load_encoder("testing:hashing").settings, ot="lexical", multilingual=multilingual
        )
        self.dim = 4
        self._finds = finds

    def encode_documents(self, texts):
        return Representation(np.eye(len(texts), dtype=np.float32), None)

    def encode_queries(self, texts, cap=1024):
        rows = np.eye(len(texts), dtype=np.float32)
        return Representation(rows if self._finds else 1 - rows, None)


def test_the_weight_of_a_language_beside_that_of_the_index():
    text = "ein Text von ausreichender Länge, der sich in der Mitte teilen lässt"
    documents = [Document(str(number), text) for number in range(FEWEST)]
    assert vector_weight(Reads(True), documents, "de") == 1.0
    assert vector_weight(Reads(False), documents, "de") == 0.001
    assert vector_weight(Reads(True), documents[1:], "de") == 0.001  # too few to tell
    assert vector_weight(Reads(False), documents, "en") == 1.0
    assert vector_weight(Reads(False, multilingual=True), documents, "de") == 1.0
    cls = np.ones((2, 3), np.float32)
    found = weighted(Representation(cls, None), ["en", "de"], {"de": 0.25}).cls
    assert found.tolist() == [[1, 1, 1], [0.25, 0.25, 0.25]]


@pytest.mark.parametrize(
    ("texts", "installed", "expected"),
    [
        (GERMAN, True, "multilingual"),
        (GERMAN, False, "default"),
        (ENGLISH, True, "default"),
        (ENGLISH | {"de1": GERMAN["de1"]}, True, "default"),
    ],
)
def test_the_automatic_model_depends_on_the_text(monkeypatch, capsys, texts, installed, expected):
    monkeypatch.setattr(run_module, "is_installed", lambda _: installed)
    config = EncodeConfig(corpus="c.jsonl", index="i", model="auto")
    documents = [Document(docid, text) for docid, text in texts.items()]
    chosen, language = run_module._choose(config, documents)
    assert chosen.model == expected
    assert language == ("de" if texts is GERMAN else "en")
    assert f"model: {expected} (" in capsys.readouterr().err


def test_the_first_window_with_a_language_decides_for_all(tmp_path, model, monkeypatch):
    """Also if windows are read before those ahead of them are encoded, as for several processes."""
    texts = {f"{docid}-{n}": text for docid, text in (ENGLISH | GERMAN).items() for n in range(4)}

    def weight_of_window(encoder, documents, language):
        return 0.1 + len(documents[0].docid + documents[0].text) / 1000

    monkeypatch.setattr(languages_module, "vector_weight", weight_of_window)
    one = make(tmp_path / "one", model, texts, window=4)
    plain = ThisProcess.encode
    monkeypatch.setattr(ThisProcess, "encode", lambda self, ahead: plain(self, list(ahead)))
    read_ahead = make(tmp_path / "ahead", model, texts, window=4)
    factor = weight_of_window(None, [Document("de1-0", GERMAN["de1"])], "de") ** 0.5
    for index in (one, read_ahead):
        assert Index.open(index).meta["encoder"]["languages"] == {"de": pytest.approx(factor)}
    assert Index.open(one).digest == Index.open(read_ahead).digest


def test_the_first_window_decides_on_the_scale_for_all(tmp_path, monkeypatch):
    texts = {f"{docid}-{n}": f"{text} " * (n + 1) for docid, text in ALL.items() for n in range(4)}
    one = make(tmp_path / "one", "testing:hashing", texts, window=4)
    plain = ThisProcess.encode
    monkeypatch.setattr(ThisProcess, "encode", lambda self, ahead: plain(self, list(ahead)))
    read_ahead = make(tmp_path / "ahead", "testing:hashing", texts, window=4)
    assert Index.open(one).digest == Index.open(read_ahead).digest


# Subjects, what they do, and where.
PARTS = {
    "en": (
        ("the old miller", "a young sailor", "my neighbour", "the village doctor", "our teacher"),
        (
            "has repaired the gate",
            "was looking for the letter",
            "would like to sell the grey horse",
        ),
        ("behind the church", "near the long bridge", "before the winter came", "after the storm"),
    ),
    "de": (
        (
            "der alte Müller",
            "ein junger Matrose",
            "mein Nachbar",
            "der Arzt des Dorfes",
            "sie alle",
        ),
        ("hat das Tor repariert", "suchte nach dem Brief", "möchte das graue Pferd verkaufen"),
        ("hinter der Kirche", "nahe der langen Brücke", "bevor der Winter kam", "nach dem Sturm"),
    ),
    "ru": (
        ("старый мельник", "молодой моряк", "мой сосед", "деревенский врач", "наш учитель"),
        ("починил деревянные ворота", "искал потерянное письмо", "хотел бы продать лошадь"),
        ("за церковью", "недалеко от длинного моста", "до прихода зимы", "после сильной бури"),
    ),
}
NAMES = ("Gandalf", "Rotterdam", "Zanzibar", "Kowalski", "Beaufort", "Obelix", "Timbuktu")


def sentences(language: str, count: int, shift: int = 0) -> list[str]:
    """Different sentences of a language. Each has a name that is in sentences of all languages."""
    who, what, where = PARTS[language]
    texts = []
    for number in range(shift, shift + count):
        subject = who[number % len(who)]
        verb = what[number % len(what)]
        place = where[number % len(where)]
        texts.append(f"{subject} {verb} {place} {NAMES[number % len(NAMES)]}.")
    return texts


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    # So few buckets that words of two languages would share many.
    folder = tmp_path_factory.mktemp("crowded")
    return str(make_lexical(folder, buckets=256, top_k=99))


@pytest.mark.parametrize("foreign", [10, 60])
@pytest.mark.parametrize(("small", "large"), [("en", "de"), ("de", "en"), ("ru", "de")])
def test_twenty_files_have_their_scores_with_a_large_file_of_another_language(
    tmp_path, crowded, small, large, foreign
):
    """The language of the index is that of most of the text: of the twenty files, or of the large file."""
    twenty = {f"{small}{n:02}": text for n, text in enumerate(sentences(small, 20))}
    rows = {f"{large}-{n:02}": text for n, text in enumerate(sentences(large, foreign, shift=3))}
    assert [language_of_document(text, large) for text in twenty.values()] == [small] * 20
    assert [language_of_document(text, small) for text in rows.values()] == [large] * foreign
    alone = Searcher.open(make(tmp_path / "alone", crowded, twenty))
    together = Searcher.open(make(tmp_path / "together", crowded, twenty | rows))
    assert together.index.language == (small if foreign < len(twenty) else large)
    for text in sentences(small, 10, shift=11):
        for mode in ("impact", "hybrid"):
            hits = together.search(text, len(twenty | rows), mode)
            of_twenty = {hit.docid: hit.score for hit in hits if hit.docid in twenty}
            expected = {hit.docid: hit.score for hit in alone.search(text, 20, mode)}
            assert list(of_twenty) == list(expected)
            assert of_twenty == pytest.approx(expected, rel=1e-6)
