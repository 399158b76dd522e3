"""OpenSearch and Elasticsearch against a stand-in: what is sent, filters, exactness, refusals."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_http import served
from support.fake_opensearch import StandIn
from support.mutable_index import Living
from support.server_samples import assert_same, load, small_index, translated

from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.config import DropConfig, ShowTableConfig
from dupmae_ir.servers.experimental.opensearch import condition_query
from dupmae_ir.servers.load import drop, show
from dupmae_ir.servers.protocol import ServerFailed


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    """An index that no test changes."""
    return small_index(tmp_path_factory.mktemp("opensearch"))


@pytest.fixture
def standin() -> StandIn:
    return StandIn()


@pytest.fixture
def port(standin: StandIn) -> Iterator[int]:
    with served(standin) as number:
        yield number


@pytest.mark.parametrize("kind", ["opensearch", "elasticsearch"])
def test_lists_are_those_of_a_search_without_it(living: Living, standin: StandIn, port: int, kind: str) -> None:
    url = f"{kind}://127.0.0.1:{port}"
    assert load(living, url, "mine", batch=50)["written_now"] == len(living.documents)
    vector = standin.bodies["mine"]["mappings"]["properties"]["cls"]
    expected = {"opensearch": ("knn_vector", "dimension"), "elasticsearch": ("dense_vector", "dims")}[kind]
    assert (vector["type"], vector[expected[1]]) == (expected[0], 16)
    assert_same(living, url, "mine")
    assert_same(living, url, "mine", ["hybrid"], [10], within=sorted(living.documents)[::3])
    assert load(living, url, "mine")["status"] == "already complete"


def test_conditions_select_the_same_documents(living: Living, port: int) -> None:
    url = f"opensearch://127.0.0.1:{port}"
    load(living, url, "mine")
    assert translated(living, url, condition_query) >= 19  # the others are sent as ids


def test_changes_and_interrupted_loads(tmp_path: Path, standin: StandIn, port: int) -> None:
    living, url = small_index(tmp_path, 60), f"opensearch://127.0.0.1:{port}"
    standin.fail_at = 3
    with pytest.raises(ServerFailed, match="rejected_execution_exception") as caught:
        load(living, url, "mine", batch=15)
    assert "\n" not in str(caught.value)
    with pytest.raises(IndexMismatch, match="is not complete: a load is running or was interrupted"):
        Searcher.open(living.index, server=url, table="mine")
    assert load(living, url, "mine", batch=15)["unchanged_now"] == 30
    first, *others = sorted(living.documents)
    living.delete(others[:5])
    living.update([living.documents[first]._replace(text="sort a list of dates by month")])
    counts = load(living, url, "mine")
    assert [counts[f"{word}_now"] for word in ("written", "deleted", "unchanged")] == [1, 5, 54]
    assert_same(living, url, "mine", hits=[7])
    assert show(ShowTableConfig(where=url, table="mine"))["rows"] == 55
    with pytest.raises(UsageError, match="`approximate` is not available"):
        load(living, url, "mine", approximate=True)
    drop(DropConfig(where=url, table="mine"))
    assert "mine" not in standin.indexes
    standin.indexes["mine"] = {}
    with pytest.raises(UsageError, match="the index mine was not made by dupmae-ir"):
        load(living, url, "mine")


def test_credentials(living: Living, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    basic = "Basic " + base64.b64encode(b"me:hunter2").decode()
    cases = {
        ("opensearch", basic): {"OPENSEARCH_USERNAME": "me", "OPENSEARCH_PASSWORD": "hunter2"},
        ("elasticsearch", "ApiKey hunter2"): {"ELASTICSEARCH_API_KEY": "hunter2"},
    }
    for (kind, header), environment in cases.items():
        with served(standin, header) as port:
            url = f"{kind}://127.0.0.1:{port}"
            with pytest.raises(ServerFailed, match="401 Unauthorized"):
                load(living, url, kind)
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            assert load(living, url, kind)["status"] == "complete"
        with pytest.raises(ServerFailed, match="no answer within 1 s") as caught:
            load(living, url, kind, timeout=1.0)
        assert "hunter2" not in str(caught.value)
        with pytest.raises(UsageError, match=r"credentials would be sent in the clear to h; use"):
            load(living, f"{kind}://h:1", "mine")
