"""Vespa against a stand-in: the package, what is sent, filters, exactness, refusals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.fake_http import served
from support.fake_vespa import StandIn
from support.mutable_index import TOPICS, Living
from support.server_samples import CONDITIONS, assert_same, load, small_index

import dupmae_ir.servers.experimental.vespa as vespa
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.index import Index
from dupmae_ir.search.query.filters import Filter
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.config import DropConfig, ShowTableConfig
from dupmae_ir.servers.experimental.vespa import application, condition_yql, numbers
from dupmae_ir.servers.load import drop, show, spec_of
from dupmae_ir.servers.protocol import ServerFailed, Untranslatable


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    """An index that no test changes."""
    return small_index(tmp_path_factory.mktemp("vespa"))


def deployed(living: Living, folder: Path, approximate: bool = False) -> StandIn:
    """A stand-in with the application package of an index."""
    for path, text in application("mine", spec_of(Index.open(living.index)), approximate).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    standin = StandIn()
    standin.deploy(folder)
    return standin


@pytest.fixture
def standin(living: Living, tmp_path: Path) -> StandIn:
    return deployed(living, tmp_path / "package")


@pytest.fixture
def url(standin: StandIn) -> Iterator[str]:
    with served(standin) as port:
        yield f"vespa://127.0.0.1:{port}"


def test_lists_are_those_of_a_search_without_it(living: Living, standin: StandIn, url: str) -> None:
    assert load(living, url, "mine", batch=50)["written_now"] == len(living.documents)
    assert_same(living, url, "mine")
    assert_same(living, url, "mine", ["hybrid"], [10], within=sorted(living.documents)[::3])
    hybrid = next(query for query in standin.queries if query["ranking.profile"] == "hybrid")
    assert hybrid["yql"] == "select * from mine where true"  # one list by the server's own sum
    assert load(living, url, "mine")["status"] == "already complete"


@pytest.mark.parametrize("weights", [(0.25, 3.0), (1e-3, 1.0)])
def test_weights_join_the_engines_sum(living: Living, url: str, weights: tuple[float, float]) -> None:
    load(living, url, "mine")
    given = {"dense_weight": weights[0], "impact_weight": weights[1]}
    plain = Searcher.open(living.index, impact_search="postings", **given)
    through = Searcher.open(living.index, server=url, table="mine", **given)
    assert through.search(TOPICS, 20) == plain.search(TOPICS, 20)


def test_conditions_select_the_same_documents(living: Living, url: str, standin: StandIn) -> None:
    load(living, url, "mine")
    plain = Searcher.open(living.index, impact_search="postings")
    through = Searcher.open(living.index, server=url, table="mine")
    assert through.server is not None
    translated = 0
    for condition in [*CONDITIONS, "year > -1 and year != 1e-30", "year > 1e-30", "tags = 'True' or year = 2020"]:
        try:
            condition_yql(Filter.parse(condition).tree)
            known = True
        except Untranslatable:
            known = False
        standin.queries.clear()
        expected = plain.search(TOPICS[0].text, 1000, "hybrid", filter=condition)
        assert through.search(TOPICS[0].text, 1000, "hybrid", filter=condition) == expected, condition
        assert known != any("ids" in query for query in standin.queries), condition
        translated += known
    assert translated == 22  # the others are sent as ids: parts and the order of strings, tiny numbers


def test_changes_and_interrupted_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    living = small_index(tmp_path, 60)
    standin = deployed(living, tmp_path / "package")
    monkeypatch.setattr(vespa, "_PAUSES", (0.0, 0.0))
    with served(standin) as port:
        url = f"vespa://127.0.0.1:{port}"
        standin.fail_at, standin.failures = 20, [429, 503]  # a busy server: sent again
        standin.failures += [507] * 99
        with pytest.raises(ServerFailed, match=r"507 .*too many inflight") as caught:
            load(living, url, "mine", batch=15)
        assert "\n" not in str(caught.value)
        with pytest.raises(IndexMismatch, match="is not complete: a load is running or was interrupted"):
            Searcher.open(living.index, server=url, table="mine")
        standin.failures = [429]
        assert 15 <= int(str(load(living, url, "mine", batch=15)["unchanged_now"])) < 60
        first, *others = sorted(living.documents)
        living.delete(others[:5])
        living.update([living.documents[first]._replace(text="sort a list of dates by month")])
        counts = load(living, url, "mine")
        assert [counts[f"{word}_now"] for word in ("written", "deleted", "unchanged")] == [1, 5, 54]
        assert_same(living, url, "mine", hits=[7])
        assert show(ShowTableConfig(where=url, table="mine"))["rows"] == 55
        drop(DropConfig(where=url, table="mine"))
        assert not any(standin.documents.values())
        standin.documents["mine"]["x"] = {"docid": "x"}
        with pytest.raises(UsageError, match="id:dupmae_ir:mine::x was not fed by dupmae-ir"):
            load(living, url, "mine")


def test_what_is_not_deployed_is_named(living: Living, url: str, standin: StandIn) -> None:
    with pytest.raises(UsageError, match="no document type other; deploy the package that dupmae-ir servers files"):
        load(living, url, "other")
    del standin.schemas["mine"].fields["ot"]
    with pytest.raises(ServerFailed, match="the schema mine lacks fields of this table"):
        load(living, url, "mine")
    empty = StandIn()
    with served(empty) as port:
        with pytest.raises(UsageError, match="no document type dupmae_ir_collections"):
            load(living, f"vespa://127.0.0.1:{port}", "mine")
        with pytest.raises(IndexMismatch, match="the server has no table 'mine'"):
            Searcher.open(living.index, server=f"vespa://127.0.0.1:{port}", table="mine")


def test_an_answer_from_a_part_of_the_documents_is_refused(living: Living, url: str, standin: StandIn) -> None:
    load(living, url, "mine")
    through = Searcher.open(living.index, server=url, table="mine")
    for coverage in ({"coverage": 50, "full": False}, {"coverage": 100, "full": True, "degraded": {"timeout": True}}):
        standin.coverage = coverage
        with pytest.raises(ServerFailed, match=f"searched {coverage['coverage']} % of the documents"):
            through.search(TOPICS, 5)


def test_approximate_lists_are_of_hnsw_and_wand(living: Living, tmp_path: Path) -> None:
    standin = deployed(living, tmp_path, approximate=True)
    assert "indexing: attribute | index" in (tmp_path / "schemas" / "mine.sd").read_text()
    with served(standin) as port:
        url = f"vespa://127.0.0.1:{port}"
        load(living, url, "mine", approximate=True)
        through = Searcher.open(living.index, server=url, table="mine", approximate=True)
        answers = list(through.answers(TOPICS, 10))
        where = {query["yql"].partition(" where ")[2] for query in standin.queries if query["hits"]}
        assert {re.sub(r": \d+", ": N", text) for text in where} == {
            "({targetHits: N, approximate: true}nearestNeighbor(cls, q))",
            "({targetHits: N}wand(ot, @r))",
        }
        assert not any(answer.report and answer.report.exact for answer in answers)
        exact = Searcher.open(living.index, impact_search="postings").search(TOPICS, 10)
        assert {answer.query.qid: answer.hits for answer in answers} == exact  # the stand-in's lists are exact


def test_odd_ids_and_texts(tmp_path: Path) -> None:
    assert vespa.user_part("a.b-c_1") == "a.b-c_1"
    odd = ["..", "a/b", "é", "a:b", "=x", "%2e", "x" * 300]
    assert len({vespa.user_part(docid) for docid in odd}) == len(odd)
    assert all(vespa.user_part(docid).startswith("=") for docid in odd)
    assert vespa._text("a\0b\tc\ufffed\ud800\U0001fffee\U0001f600") == "a\ufffdb\tc\ufffdd\ufffd\ufffde\U0001f600"
    found = numbers({"a": [1, math.inf, "2", True], "b": math.nan})
    assert [one["number"] for one in found] == [1.0]
    living = small_index(tmp_path, 4)
    living.add(
        [document._replace(docid=docid) for docid, document in zip(odd[:4], living.documents.values(), strict=True)]
    )
    standin = deployed(living, tmp_path / "package")
    with served(standin) as port:
        url = f"vespa://127.0.0.1:{port}"
        load(living, url, "mine")
        assert_same(living, url, "mine", ["hybrid"], [3])
        living.delete(odd[:4])
        assert load(living, url, "mine")["deleted_now"] == 4


def test_credentials(living: Living, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(standin, "Bearer hunter2") as port:
        url = f"vespa://127.0.0.1:{port}"
        with pytest.raises(ServerFailed, match="401 Unauthorized"):
            load(living, url, "mine")
        monkeypatch.setenv("VESPA_CLI_DATA_PLANE_TOKEN", "hunter2")
        assert load(living, url, "mine")["status"] == "complete"
    with pytest.raises(ServerFailed, match="no answer within 1 s") as caught:
        load(living, url, "mine", timeout=1.0)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(UsageError, match=r"credentials would be sent in the clear to h; use vespa\+https://"):
        load(living, "vespa://h:1", "mine")


def test_client_certificates_are_those_of_the_vespa_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CERT_FILE": "c.pem", "KEY_FILE": "k.pem", "CA_CERT_FILE": "ca.pem"}.items():
        monkeypatch.setenv(f"VESPA_CLI_DATA_PLANE_{name}", value)
    table: Any = vespa.Vespa(urlsplit("vespa+https://vespa.example/music"), "mine", 1.0)
    assert (table.session.cert, table.session.verify) == (("c.pem", "k.pem"), "ca.pem")
    assert (table._base, table._cluster) == ("https://vespa.example:443", "music")
    table.close()
