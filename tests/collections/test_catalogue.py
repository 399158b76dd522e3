"""The catalogue agrees with the real files, and an overlay replaces only the keys it has."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from dupmae_ir.collections import find, load, names, qrels_digest, topics_digest
from dupmae_ir.collections.catalogue import FAMILIES
from dupmae_ir.collections.prepared import collect_facts
from dupmae_ir.errors import InputError, UnknownName, UsageError
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.measures import parse_measures

ALL = [find(name) for name in names()]
# Anserini's copies omit judgements without effect: two of grade -1, and those of grade 0.
JUDGED_ELSEWHERE = {"beir-trec-covid": 66334, "beir-webis-touche2020": 932}


def test_number_of_collections():
    assert len(ALL) == 3 + 2 + 17 + 12 + 1
    assert {c.family for c in ALL} == set(FAMILIES) - {"local"}
    assert [c.name for c in ALL if c.licensed] == [
        "beir-bioasq",
        "beir-signal1m",
        "beir-trec-news",
        "beir-robust04",
    ]


@pytest.mark.parametrize("collection", ALL, ids=lambda c: c.name)
def test_entries_are_consistent(collection):
    assert collection.title
    for test in collection.tests.values():
        if test.answers:
            assert all(re.fullmatch(r"Acc@\d+", measure) for measure in test.measures)
        else:
            assert [str(m) for m in parse_measures(test.measures)] == list(test.measures)
    references = [
        collection.corpus,
        *(r for t in collection.tests.values() for r in (t.topics, t.qrels)),
    ]
    roles = {reference.partition(":")[0] for reference in references if reference}
    assert roles == ({"folder"} if collection.licensed else set(collection.sources))
    for source in collection.sources.values():
        assert re.fullmatch(r"https://[^{}\s]+", source.url)
        assert source.md5 is None or re.fullmatch("[0-9a-f]{32}", source.md5)
        assert source.sha256 is None or re.fullmatch("[0-9a-f]{64}", source.sha256)


def test_settings_of_the_papers():
    assert [c.name for c in ALL if c.remove_query] == [c.name for c in ALL if c.family == "beir"]
    # NIST counts grades 1 to 3 of documents, and 2 to 3 of passages.
    assert find("msmarco-doc").tests["dl19"].measures == ("nDCG@10", "AP@100", "R@1000")
    assert find("beir-arguana").query_length == 512
    assert find("msmarco-passage-titled").title_separator == "sep"
    assert find("msmarco-passage").tests["dev"].measures == ("RR@10", "R@1000")
    assert find("msmarco-passage").tests["dl20"].measures == (
        "nDCG@10",
        "AP(rel=2)",
        "R(rel=2)@1000",
    )
    assert find("beir-scifact").sources["archive"].url.endswith("/BEIR/datasets/scifact.zip")
    forums = [c for c in ALL if "cqadupstack" in c.name]
    assert len({c.sources["archive"] for c in forums}) == 1
    assert len({c.corpus for c in forums}) == 12


def real_tests() -> list[tuple[str, str]]:
    return [(c.name, t) for c in ALL if c.family in ("msmarco", "beir") for t in c.tests]


@pytest.mark.parametrize(("name", "test"), real_tests())
def test_counts_and_digests_match_the_real_files(name, test, shared_data):
    collection = find(name)
    folder = shared_data / "topics-and-qrels"
    if collection.family == "beir":
        stem = f"beir-v1.0.0-{name.removeprefix('beir-')}.test"
        topics_path = folder / f"topics.{stem}.tsv.gz"
        qrels_path = folder / f"qrels.{stem}.txt.gz"
    else:
        topics_path, qrels_path = (
            folder / Path(collection.sources[f"{test}-{part}"].url).name
            for part in ("topics", "qrels")
        )
        qrels_path = qrels_path.with_name(f"{qrels_path.name}.gz")
    expected = collection.tests[test]
    texts = {q.qid: q.text for q in read_topics(topics_path)}
    if name == "beir-robust04":
        # Its judgements are not available here; every topic is judged.
        assert not qrels_path.exists()
        assert expected.qrels_digest is None
        judged = texts.keys()
        qrels = None
    else:
        qrels = read_qrels(qrels_path)
        judged = qrels.keys()
        assert qrels_digest(qrels) == expected.qrels_digest
        assert sum(map(len, qrels.values())) == JUDGED_ELSEWHERE.get(name, expected.judgements)
    assert len(judged) == expected.queries
    assert topics_digest({qid: texts[qid] for qid in judged}) == expected.topics_digest


@pytest.mark.parametrize("name", ["msmarco-passage", "msmarco-doc"])
def test_checksums_of_topics_and_judgements_match_the_files(name, shared_data):
    for role, source in find(name).sources.items():
        if role.endswith(("-topics", "-qrels")):
            path = shared_data / "topics-and-qrels" / Path(source.url).name
            packed = path.with_name(f"{path.name}.gz")
            content = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
            assert hashlib.sha256(content).hexdigest() == source.sha256


def test_scifact_matches_the_catalogue(shared_data):
    """A folder made from SciFact's own release has BEIR's documents, topics and judgements."""
    expected = find("beir-scifact")
    folder = shared_data / "scifact"
    facts = collect_facts(expected, folder, folder / "corpus.jsonl", quiet=True)
    assert facts.documents == expected.documents
    assert facts.tests["test"] == {
        key: getattr(expected.tests["test"], key)
        for key in ("queries", "judgements", "topics_digest", "qrels_digest", "dangling")
    }


def test_digests_change_only_with_what_affects_the_measures():
    texts = {"1": "a  b\tc ", "2": "d"}
    assert topics_digest(texts) == topics_digest({"2": "d", "1": " a b c"})
    assert topics_digest(texts) != topics_digest({"1": "a b c", "2": "D"})
    assert topics_digest(texts) != topics_digest({"1": "a b c"})
    qrels = {"1": {"x": 1, "y": 0}, "2": {"z": 2}}
    assert qrels_digest(qrels) == qrels_digest({"2": {"z": 2, "w": -1}, "1": {"x": 1}})
    assert qrels_digest(qrels) != qrels_digest({"1": {"x": 1}, "2": {"z": 1}})
    assert qrels_digest(qrels) != qrels_digest({"1": {"x": 1, "y": 1}, "2": {"z": 2}})


def test_a_misspelt_name_gets_a_suggestion():
    with pytest.raises(UnknownName, match=r"Did you mean 'beir-arguana'\?"):
        find("beir-arguna")


def overlay(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_an_overlay_replaces_only_its_own_keys(tmp_path, monkeypatch):
    path = overlay(
        tmp_path,
        '[beir-scifact]\ndocuments = 7\nsources.archive.md5 = ""\ntests.test.qrels_digest = "ab"\n'
        '[shared.beir]\ntests.test.measures = ["R@5"]\n[addresses]\nbeir = "https://example.org"\n',
    )
    mine = find("beir-scifact", path)
    real = find("beir-scifact")
    assert (mine.documents, mine.title, mine.tests["test"].queries) == (7, real.title, 300)
    assert mine.sources["archive"].url == "https://example.org/scifact.zip"
    assert mine.sources["archive"].md5 is None
    assert mine.sources["archive"].size == real.sources["archive"].size
    assert mine.tests["test"].measures == ("R@5",)
    assert mine.tests["test"].qrels_digest == "ab"
    assert find("msmarco-doc", path) == find("msmarco-doc")
    assert load(path).stand_in
    assert not load().stand_in
    monkeypatch.setenv("DUPMAE_IR_CATALOGUE", str(path))
    assert find("beir-scifact").documents == 7
    assert load().stand_in


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[beir-scifakt]\n", "no table named 'beir-scifakt' .*Did you mean 'beir-scifact'"),
        ("[shared.bier]\n", "no shared table named 'bier' .*Did you mean 'beir'"),
        (
            "[beir-scifact]\ndocument = 3\n",
            r"beir-scifact: no setting named 'document'.*Did you mean 'documents'",
        ),
        ('[beir-scifact]\ndocuments = "3"\n', "documents: expected int, got '3'"),
        (
            "[beir-scifact]\nsources.archive.md = 'x'\n",
            r"beir-scifact.sources.archive: no setting named 'md'",
        ),
        (
            "[beir-scifact]\ntests.dev.queries = 'x'\n",
            r"beir-scifact.tests.dev: queries: expected int",
        ),
        ("[beir-scifact\n", "not valid TOML"),
    ],
)
def test_an_invalid_overlay_is_reported_in_one_line(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as e:
        find("beir-scifact", overlay(tmp_path, text))
    assert "mine.toml" in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "line", ['like = "nothing"', "like = []", "tests = 3", 'sources.archive.url = "{nothing}/x"']
)
def test_a_value_of_another_kind_is_one_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(f"[beir-arguana]\n{line}\n")
    with pytest.raises(InputError, match=r"catalogue\.toml: a value of another kind") as e:
        load(path)
    assert "\n" not in str(e.value)


def test_a_missing_overlay_is_reported_in_one_line(tmp_path):
    with pytest.raises(InputError, match="no such catalogue"):
        load(tmp_path / "none.toml")


def test_the_table_in_the_docs_matches_the_catalogue():
    page = (Path(__file__).parents[2] / "docs" / "collections.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    name = ""
    shown = {}
    for row in rows:
        if len(row) == 7 and row[0] not in ("collection", ":--"):
            name = row[0] or name
            shown[name, row[2]] = row[1:2] + row[3:6] if row[0] else row[3:6]
    for collection in ALL:
        for i, test in enumerate(collection.tests.values()):
            cells = shown.pop((collection.name, test.name))
            assert cells[-1] == ", ".join(test.measures)
            if collection.family != "demo":
                counts = [
                    f"{test.queries:,}",
                    "answer strings" if test.answers else f"{test.judgements:,}",
                ]
                assert cells[:-1] == ([f"{collection.documents:,}"] if i == 0 else []) + counts
    assert not shown
