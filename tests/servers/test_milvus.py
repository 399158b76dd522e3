"""Milvus by milvus-lite, which runs the client's own requests on a file; and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mutable_index import TOPICS, Living
from support.server_samples import assert_same, load, small_index, translated

from dupmae_ir.__main__ import main
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.config import DropConfig, ShowTableConfig
from dupmae_ir.servers.load import drop, show
from dupmae_ir.servers.protocol import RECORDS, ServerFailed, open_table

pytest.importorskip("pymilvus", reason="pip install 'dupmae-ir[milvus]'")
pytest.importorskip("milvus_lite", reason="pip install 'dupmae-ir[milvus]'")

from dupmae_ir.servers.milvus import Milvus, condition_expression

# Its server runs in this process and closes its sockets when it likes.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
)


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    """An index that no test changes."""
    return small_index(tmp_path_factory.mktemp("milvus"))


@pytest.fixture(scope="module")
def loaded(living: Living, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a file with the table ``mine``."""
    url = f"milvus://{tmp_path_factory.mktemp('kind') / 'm.db'}"
    assert load(living, url, "mine", batch=50)["written_now"] == len(living.documents)
    return url


def test_lists_are_those_of_a_search_without_it(living: Living, loaded: str) -> None:
    assert_same(living, loaded, "mine")
    assert_same(living, loaded, "mine", ["hybrid"], [10], within=sorted(living.documents)[::3])
    again = load(living, loaded, "mine")
    assert (again["written_now"], again["status"]) == (0, "already complete")


def test_a_collection_that_was_released_is_loaded_again(living: Living, loaded: str) -> None:
    """As when another process opens a file of milvus-lite."""
    table = open_table(loaded, "mine", 60.0)
    for name in (RECORDS, "mine"):
        table._client.release_collection(name)  # type: ignore[attr-defined]
    assert_same(living, loaded, "mine", ["hybrid"], [5])


def test_conditions_select_the_same_documents(living: Living, loaded: str) -> None:
    assert translated(living, loaded, condition_expression) >= 8  # the others are sent as ids


def test_lists_end_where_the_engine_ends_them(
    living: Living, loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Milvus, "max_rows", 40)
    through = Searcher.open(living.index, server=loaded, table="mine")
    exact = Searcher.open(living.index, impact_search="postings").search(TOPICS, 40, "dense")
    for answer in through.answers(TOPICS, 40, "dense"):
        assert answer.report
        assert not answer.report.exact  # nothing is known of what follows the last hit
        assert answer.hits == exact[answer.query.qid]
    assert all(
        answer.report and answer.report.exact for answer in through.answers(TOPICS, 5, "dense")
    )
    with pytest.raises(UsageError, match="milvus lists at most 40 rows"):
        through.search(TOPICS, 41)


def test_changes_and_interrupted_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    living = small_index(tmp_path, 60)
    url = f"milvus://{tmp_path / 'm.db'}"
    upsert = Milvus.upsert
    calls = []

    def failing(table: Milvus, rows: object) -> None:
        calls.append(rows)
        if len(calls) == 3:
            raise KeyboardInterrupt
        upsert(table, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Milvus, "upsert", failing)
    with pytest.raises(KeyboardInterrupt):
        load(living, url, "mine", batch=15)
    with pytest.raises(
        IndexMismatch, match="is not complete: a load is running or was interrupted"
    ):
        Searcher.open(living.index, server=url, table="mine")
    assert load(living, url, "mine", batch=15)["unchanged_now"] == 30
    first, *others = sorted(living.documents)
    living.delete(others[:5])
    living.update([living.documents[first]._replace(text="sort a list of dates by month")])
    counts = load(living, url, "mine")
    assert [counts[f"{word}_now"] for word in ("written", "deleted", "unchanged")] == [1, 5, 54]
    assert_same(living, url, "mine", hits=[7])
    shown = show(ShowTableConfig(where=url, table="mine"))
    assert (shown["rows"], shown["state"]) == (55, "complete")
    with pytest.raises(UsageError, match="`approximate` is not available"):
        load(living, url, "mine", approximate=True)
    drop(DropConfig(where=url, table="mine"))
    with pytest.raises(UsageError, match="no table 'mine'"):
        show(ShowTableConfig(where=url, table="mine"))


def test_refusals_are_one_line(
    living: Living,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"the folder .* does not exist"):
        load(living, f"milvus://{tmp_path / 'no' / 'm.db'}", "mine")
    with pytest.raises(ServerFailed, match=r"127\.0\.0\.1:9") as caught:
        load(living, "milvus://127.0.0.1:9", "mine", timeout=1.0)
    assert "\n" not in str(caught.value)
    assert (
        main(["servers", "load", "--index", str(living.index), "--to", "milvus://:hunter2@h:1"])
        == 2
    )
    assert "hunter2" not in (error := capfd.readouterr().err)
    assert "set MILVUS_TOKEN" in error
    monkeypatch.setenv("MILVUS_TOKEN", "hunter2")
    with pytest.raises(
        UsageError, match=r"MILVUS_TOKEN would be sent in the clear to h; use milvus\+https://"
    ):
        load(living, "milvus://h:1", "mine")
