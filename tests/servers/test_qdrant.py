"""Qdrant in its local mode, which runs the client's own requests on a folder; and refusals of a server."""

from __future__ import annotations

import gc
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mutable_index import Living
from support.server_samples import assert_same, load, small_index, translated

from dupmae_ir.__main__ import main
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.config import DropConfig, ShowTableConfig
from dupmae_ir.servers.load import drop, show
from dupmae_ir.servers.protocol import ServerFailed
from dupmae_ir.servers.qdrant import condition_filter

pytest.importorskip("qdrant_client", reason="pip install 'dupmae-ir[qdrant]'")


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    """An index that no test changes."""
    return small_index(tmp_path_factory.mktemp("qdrant"))


@pytest.fixture(scope="module")
def loaded(living: Living, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a folder with the table ``mine``."""
    url = f"qdrant://{tmp_path_factory.mktemp('kind') / 'q'}"
    assert load(living, url, "mine", batch=50)["written_now"] == len(living.documents)
    return url


def test_lists_are_those_of_a_search_without_it(living: Living, loaded: str) -> None:
    assert_same(living, loaded, "mine")
    assert_same(living, loaded, "mine", ["hybrid"], [10], within=sorted(living.documents)[::3])
    again = load(living, loaded, "mine")
    assert (again["written_now"], again["status"]) == (0, "already complete")


def test_conditions_select_the_same_documents(living: Living, loaded: str) -> None:
    assert translated(living, loaded, condition_filter) >= 17  # the others are sent as ids


def test_changes_and_interrupted_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dupmae_ir.servers.qdrant import Qdrant

    living = small_index(tmp_path, 60)
    url = f"qdrant://{tmp_path / 'q'}"
    upsert = Qdrant.upsert
    calls = []

    def failing(table: Qdrant, rows: object) -> None:
        calls.append(rows)
        if len(calls) == 3:
            raise KeyboardInterrupt
        upsert(table, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Qdrant, "upsert", failing)
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
    assert isinstance(shown["bytes"], int)
    drop(DropConfig(where=url, table="mine"))
    with pytest.raises(UsageError, match="no table 'mine'"):
        show(ShowTableConfig(where=url, table="mine"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_not_its_own_is_refused(living: Living, tmp_path: Path) -> None:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(tmp_path / "q"))
    client.create_collection(
        "mine", vectors_config=models.VectorParams(size=1, distance=models.Distance.DOT)
    )
    with pytest.raises(ServerFailed, match="already accessed by another instance"):
        load(living, f"qdrant://{tmp_path / 'q'}", "mine")
    client.close()
    with pytest.raises(UsageError, match="the collection mine was not made by dupmae-ir"):
        load(living, f"qdrant://{tmp_path / 'q'}", "mine")
    with pytest.raises(UsageError, match=r"the folder .* does not exist"):
        load(living, f"qdrant://{tmp_path / 'no' / 'q'}", "mine")
    gc.collect()  # the client that was refused leaves the file of its lock open


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers 401, or nothing at all for as long as ``stalled`` is not set."""

    stalled: threading.Event | None = None

    def do_GET(self) -> None:
        if self.stalled is not None:
            self.stalled.wait(30)
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    """The URL of a server that lets nobody in."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"qdrant://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_server_that_refuses_or_stalls_is_one_line(
    living: Living,
    refusing: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["servers", "load", "--index", str(living.index), "--to", refusing, "--quiet"]
    assert main(words) == 1
    assert "401 Unauthorized" in (error := capfd.readouterr().err)
    assert "set QDRANT_API_KEY" in error
    assert error.count("\n") == 1
    event = threading.Event()
    monkeypatch.setattr(Refusing, "stalled", event)
    assert main([*words, "--timeout", "1"]) == 1
    event.set()
    assert "no answer within 1 s" in (error := capfd.readouterr().err)
    assert error.count("\n") == 1


def test_keys_stay_secret(
    living: Living, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("qdrant://:hunter2@h:1", "qdrant://h:1/?api_key=hunter2"):
        assert main(["servers", "load", "--index", str(living.index), "--to", url]) == 2
        assert "hunter2" not in (error := capfd.readouterr().err)
        assert "set QDRANT_API_KEY" in error
    monkeypatch.setenv("QDRANT_API_KEY", "hunter2")
    with pytest.raises(
        UsageError, match=r"QDRANT_API_KEY would be sent in the clear to h; use qdrant\+https://"
    ):
        load(living, "qdrant://h:1", "mine")
