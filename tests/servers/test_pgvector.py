"""A real PostgreSQL with pgvector: loading, killed loads, changes, filters, exactness, refusals."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.mutable_index import TOPICS, Living
from support.server_samples import CONDITIONS, assert_same, load, small_index

from dupmae_ir.__main__ import main
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers import pgvector
from dupmae_ir.servers.config import DropConfig, ShowTableConfig
from dupmae_ir.servers.load import drop, show
from dupmae_ir.servers.protocol import ServerFailed
from dupmae_ir.testing import HashingEncoder

psycopg = pytest.importorskip("psycopg", reason="pip install 'dupmae-ir[pgvector]'")

Sql = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    """An index that no test changes."""
    return small_index(tmp_path_factory.mktemp("pg"))


@pytest.fixture
def name(request: pytest.FixtureRequest, postgres: str) -> Iterator[str]:
    """A table that is dropped after the test."""
    made = f"c{abs(hash(request.node.nodeid)) % 10**9}"
    yield made
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {made}")
        if connection.execute("SELECT to_regclass('dupmae_ir_collections')").fetchone()[0]:
            connection.execute("DELETE FROM dupmae_ir_collections WHERE name = %s", (made,))


@pytest.fixture
def sql(postgres: str) -> Iterator[Sql]:
    """Runs a statement and returns its rows."""
    with psycopg.connect(postgres, autocommit=True) as connection:

        def execute(statement: str, *values: object) -> list[Any]:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

        yield execute


def test_lists_are_those_of_a_search_without_it(living: Living, postgres: str, name: str) -> None:
    loaded = load(living, postgres, name, batch=50)
    assert (loaded["written_now"], loaded["status"]) == (len(living.documents), "complete")
    assert_same(living, postgres, name)
    assert_same(living, postgres, name, ["hybrid"], [10], within=sorted(living.documents)[::3])
    again = load(living, postgres, name)
    assert (again["written_now"], again["status"]) == (0, "already complete")


@pytest.mark.parametrize("weights", [(0.25, 3.0), (1e-3, 1.0)])
def test_weights_join_the_servers_sum(
    living: Living, postgres: str, name: str, weights: tuple[float, float]
) -> None:
    load(living, postgres, name)
    given = {"dense_weight": weights[0], "impact_weight": weights[1]}
    plain = Searcher.open(living.index, impact_search="postings", **given)
    through = Searcher.open(living.index, server=postgres, table=name, **given)
    assert through.search(TOPICS, 20) == plain.search(TOPICS, 20)


def test_conditions_select_the_same_documents(living: Living, postgres: str, name: str) -> None:
    load(living, postgres, name)
    plain = Searcher.open(living.index, impact_search="postings")
    through = Searcher.open(living.index, server=postgres, table=name)
    assert through.server is not None
    sizes = set()
    for condition in CONDITIONS:
        selection = through.selection(None, condition)
        assert selection.condition is not None
        expected = plain.search(TOPICS[0].text, 1000, "hybrid", filter=condition)
        assert through.search(TOPICS[0].text, 1000, "hybrid", within=selection) == expected, (
            condition
        )
        sizes.add(len(expected))
    assert len(sizes) > 10
    # SQL has no NUL: the ids of the documents are sent instead of the condition.
    odd = "lang != 'e\0'"
    assert through.search(TOPICS[0].text, 1000, filter=odd) == plain.search(
        TOPICS[0].text, 1000, filter=odd
    )


def test_changes_are_pushed_as_differences(tmp_path: Path, postgres: str, name: str) -> None:
    living = small_index(tmp_path, 60)
    load(living, postgres, name)
    through = Searcher.open(living.index, server=postgres, table=name)
    first, *others = sorted(living.documents)
    living.delete(others[:5])
    living.update([living.documents[first]._replace(text="sort a list of dates by month")])
    with pytest.raises(IndexMismatch, match=f"table {name} holds 60 documents of another state"):
        Searcher.open(living.index, server=postgres, table=name)
    loaded = load(living, postgres, name)
    assert [loaded[f"{word}_now"] for word in ("written", "deleted", "unchanged")] == [1, 5, 54]
    assert_same(living, postgres, name)
    with pytest.raises(IndexMismatch, match="of another state"):  # opened before the change
        through.search(TOPICS, 3)
    living.compact()  # other rows and another digest, the same documents
    assert load(living, postgres, name)["unchanged_now"] == 55
    assert_same(living, postgres, name, ["hybrid"])


KILLED = """
import os, signal, sys
import psycopg
left = int(sys.argv.pop())
execute = psycopg.Connection.execute
def counted(*given, **more):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return execute(*given, **more)
psycopg.Connection.execute = counted
from dupmae_ir.__main__ import main
from dupmae_ir.servers import pgvector
sys.exit(main(sys.argv[1:]))
"""


def test_a_load_killed_at_random_ends_whole(
    living: Living, postgres: str, name: str, sql: Sql
) -> None:
    words = [
        "servers",
        "load",
        "--index",
        str(living.index),
        "--to",
        postgres,
        "--table",
        name,
        "--batch",
        "7",
    ]
    seed = random.randrange(10**6)
    statements = random.Random(seed).sample(
        range(5, 18), 3
    )  # of about 60: what was loaded is not loaded again
    done = 0
    for left in statements:
        command = [sys.executable, "-c", KILLED, *words, "--quiet", str(left)]
        killed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, (seed, killed.stderr)
        if sql("SELECT to_regclass(%s)", name)[0][0]:
            before = done
            done = sql(f"SELECT count(*) FROM {name}")[0][0]
            assert done >= before, seed
            with pytest.raises(
                IndexMismatch, match="is not complete: a load is running or was interrupted"
            ):
                Searcher.open(living.index, server=postgres, table=name)
    loaded = load(living, postgres, name, batch=7)
    assert loaded["unchanged_now"] == done, seed
    assert loaded["written_now"] == len(living.documents) - done, seed
    assert_same(living, postgres, name)


def test_a_server_that_goes_away_is_one_line_and_the_load_continues(
    living: Living, postgres: str, name: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dupmae_ir.servers.pgvector import PgVector

    upsert = PgVector.upsert
    calls = []

    def failing(table: PgVector, rows: Any) -> None:
        calls.append(rows)
        if len(calls) == 3:
            sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dupmae-ir'"
            )
        upsert(table, rows)

    monkeypatch.setattr(PgVector, "upsert", failing)
    with pytest.raises(ServerFailed) as caught:
        load(living, postgres, name, batch=10)
    assert "\n" not in str(caught.value)
    assert load(living, postgres, name, batch=10)["unchanged_now"] == 20
    assert_same(living, postgres, name, ["hybrid"], [5])


@pytest.mark.nightly
def test_a_server_killed_while_loading_ends_whole(
    living: Living,
    mortal: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ["--index", str(living.index), "--table", "mine"]
    load_words = ["servers", "load", *words, "--to", mortal.url, "--batch", "7", "--quiet"]
    search_words = ["search", *words, "--server", mortal.url, "--query", "sort a list of dates"]
    values = pgvector._values
    seed = random.randrange(10**6)
    batches = random.Random(seed).sample(
        range(2, 12), 2
    )  # of 24; what was committed is not copied again
    done = 0
    for batch in batches:
        left = [batch]

        def rows(*given: Any, left: list[int] = left) -> Iterator[list[object]]:
            left[0] -= 1
            for number, row in enumerate(values(*given)):
                if left[0] == 0 and number == 3:  # within a COPY, within a transaction
                    mortal.kill()
                yield row

        monkeypatch.setattr(pgvector, "_values", rows)
        assert main(load_words) == 1
        error = capfd.readouterr().err
        assert error.count("\n") == 1, (seed, error)
        assert error.startswith("dupmae-ir servers load: postgresql://"), seed
        assert main(search_words) == 1  # the server is dead
        error = capfd.readouterr().err
        assert error.startswith("dupmae-ir search: postgresql://"), seed
        assert error.count("\n") == 1, (seed, error)
        mortal.start()
        with psycopg.connect(mortal.url, autocommit=True) as connection:
            row = connection.execute("SELECT count(*) FROM mine").fetchone()
        done += 7 * (batch - 1)
        assert row == (done,), (
            seed
        )  # every batch that was committed, and nothing of the one that was not
        assert main(search_words) == 2
        assert "is not complete: a load is running or was interrupted" in capfd.readouterr().err
    monkeypatch.undo()
    loaded = load(living, mortal.url, "mine", batch=7)
    assert loaded["unchanged_now"] == done, seed
    assert loaded["written_now"] == len(living.documents) - done, seed
    assert_same(living, mortal.url, "mine")


def test_a_stalled_server_is_one_line(living: Living, postgres: str, name: str, sql: Sql) -> None:
    load(living, postgres, name)
    through = Searcher.open(living.index, server=postgres, table=name, timeout=1.0)
    sql("BEGIN")
    sql(
        f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE"
    )  # the server takes the query and does not answer
    with pytest.raises(ServerFailed, match=r"no answer within 1 s; raise `timeout`") as caught:
        through.search("sort", 3)
    sql("ROLLBACK")
    assert "\n" not in str(caught.value)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and says nothing
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(ServerFailed, match="no answer within 2 s"):
            Searcher.open(living.index, server=url, table=name, timeout=2.0)


def test_two_loads_at_once_are_refused(living: Living, postgres: str, name: str, sql: Sql) -> None:
    sql("SELECT pg_advisory_lock(hashtextextended(%s, 0))", f"dupmae-ir {name}")
    with pytest.raises(UsageError, match=f"another process is loading {name}"):
        load(living, postgres, name)


def test_what_is_not_its_own_is_refused(
    living: Living, tmp_path: Path, postgres: str, name: str, sql: Sql
) -> None:
    sql(f"CREATE TABLE {name} (a int)")
    with pytest.raises(UsageError, match=f"the table {name} was not made by dupmae-ir"):
        load(living, postgres, name)
    with pytest.raises(UsageError, match=f"the table {name} was not made by dupmae-ir"):
        drop(DropConfig(where=postgres, table=name))
    sql(f"DROP TABLE {name}")
    wait_for_locks(sql)
    load(living, postgres, name)
    (record,) = sql("SELECT record FROM dupmae_ir_collections WHERE name = %s", name)[0]
    for field, value in {"model": "another", "scale": 1.5, "dim": 8, "terms": 9}.items():
        changed = json.dumps({**record, "spec": {**record["spec"], field: value}})
        sql("UPDATE dupmae_ir_collections SET record = %s WHERE name = %s", changed, name)
        wait_for_locks(sql)
        with pytest.raises(
            IndexMismatch, match=f"table {name} holds rows with {field} {value}, but"
        ):
            load(living, postgres, name)
        with pytest.raises(
            IndexMismatch, match=f"table {name} holds rows with {field} {value}, but"
        ):
            Searcher.open(living.index, server=postgres, table=name)


def wait_for_locks(sql: Sql) -> None:
    """Return when the server has noticed that the connection of a failed load is closed."""
    until = time.monotonic() + 10
    while (
        sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0][0]
        and time.monotonic() < until
    ):
        time.sleep(0.01)


def assert_repaired(living: Living, postgres: str, name: str, sql: Sql) -> None:
    """The next load writes every row, and searches are right again."""
    wait_for_locks(sql)
    assert load(living, postgres, name)["written_now"] == len(living.documents)
    assert_same(living, postgres, name, ["hybrid"], [5])


CHANGES = {
    "deletion": ["DELETE FROM {table} WHERE docid = %s"],
    "zeroing": ["UPDATE {table} SET cls = cls - cls WHERE docid = %s"],
    "no impacts": ["UPDATE {table} SET ot = '{{}}/1000'::sparsevec WHERE docid = %s"],
    "insertion": [
        "INSERT INTO {table} SELECT docid || 'x', fingerprint, cls, ot FROM {table} WHERE docid = %s"
    ],
    "deletion of all": ["TRUNCATE {table}"],
    "replication": [
        "SET session_replication_role = replica",
        "DELETE FROM {table} WHERE docid = %s",
    ],
    "no trigger": [
        "DROP TRIGGER dupmae_ir_changes ON {table}",
        "DELETE FROM {table} WHERE docid = %s",
    ],
    "disabled": [
        "ALTER TABLE {table} DISABLE TRIGGER USER",
        "DELETE FROM {table} WHERE docid = %s",
    ],
}
"""What another client does to the table, with the best document of a query."""


@pytest.mark.parametrize("change", CHANGES)
def test_no_list_is_certified_over_a_table_that_somebody_changed(
    living: Living, postgres: str, name: str, sql: Sql, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(living, postgres, name)
    through = Searcher.open(living.index, HashingEncoder(), server=postgres, table=name)
    best = through.search(TOPICS[0].text, 1)[0].docid
    width = sql(f"SELECT ot::text FROM {name} LIMIT 1")[0][0].rpartition("/")[2]
    for statement in CHANGES[change]:
        statement = statement.replace("1000", width).format(table=name)
        sql(statement, *([best] if "%s" in statement else []))
    for ask in (
        through.search,
        lambda *given: Searcher.open(living.index, server=postgres, table=name),
    ):
        with pytest.raises(ServerFailed, match="another program changed its rows"):
            ask(TOPICS[0].text, 1)
    # Fingerprints say nothing now. A load that repairs and is interrupted still knows it.
    monkeypatch.setattr(
        pgvector.PgVector, "upsert", lambda *_: (_ for _ in ()).throw(ServerFailed("gone"))
    )
    with pytest.raises(ServerFailed, match="gone"):
        load(living, postgres, name)
    monkeypatch.undo()
    assert_repaired(living, postgres, name, sql)
    assert load(living, postgres, name)["status"] == "already complete"


def test_the_state_of_the_table_is_one_question(
    living: Living, postgres: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(living, postgres, name)
    searcher = Searcher.open(living.index, server=postgres, table=name)
    assert searcher.search("sort a list", 3, "hybrid")
    asked = []
    execute = pgvector.PgVector._execute

    def counted(table: pgvector.PgVector, statement: str, *values: object) -> object:
        asked.append(statement)
        return execute(table, statement, *values)

    monkeypatch.setattr(pgvector.PgVector, "_execute", counted)
    assert searcher.search("sort a list", 3, "hybrid")
    assert len(asked) == 2  # the list, and whether the table is still the one that was loaded


def test_a_change_during_a_load_is_not_taken_for_the_loads(
    living: Living, postgres: str, name: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert = pgvector.PgVector.upsert

    def interrupted(table: Any, rows: Any) -> None:
        upsert(table, rows)
        sql(f"UPDATE {name} SET cls = cls - cls WHERE docid = %s", rows[0].docid)

    monkeypatch.setattr(pgvector.PgVector, "upsert", interrupted)
    with pytest.raises(ServerFailed, match="another program changes the table"):
        load(living, postgres, name)
    monkeypatch.undo()
    assert_repaired(living, postgres, name, sql)


def test_rows_that_somebody_changed_are_noticed(
    living: Living, postgres: str, name: str, sql: Sql
) -> None:
    load(living, postgres, name)
    through = Searcher.open(living.index, HashingEncoder(), server=postgres, table=name)
    best = through.search(TOPICS[0].text, 1)[0].docid
    sql(
        "SET dupmae_ir.loading = 'on'"
    )  # not counted, as if somebody had meant to deceive: the scores tell
    sql(f"UPDATE {name} SET cls = cls + cls WHERE docid = %s", best)
    with pytest.raises(ServerFailed, match=f"the hybrid score of '{best}' is"):
        through.search(TOPICS[0].text, 5)
    assert load(living, postgres, name, rewrite=True)["written_now"] == len(living.documents)
    assert_same(living, postgres, name, ["hybrid"], [5])
    sql(
        f"INSERT INTO {name} SELECT docid || 'x', fingerprint, cls, ot FROM {name} WHERE docid = %s",
        best,
    )
    with pytest.raises(ServerFailed, match=f"has a document '{best}x' that"):
        through.search(TOPICS[0].text, 5)
    assert load(living, postgres, name)["deleted_now"] == 1  # the number of rows tells


def test_an_approximate_index_changes_only_what_asks_for_it(
    living: Living, postgres: str, name: str, sql: Sql
) -> None:
    load(living, postgres, name, approximate=True)
    indexes = {row[0] for row in sql("SELECT indexname FROM pg_indexes WHERE tablename = %s", name)}
    assert {f"{name}_cls_hnsw", f"{name}_ot_hnsw"} <= indexes
    assert_same(living, postgres, name)
    answers = list(
        Searcher.open(living.index, server=postgres, table=name, approximate=True).answers(
            TOPICS, 10
        )
    )
    assert not any(answer.report and answer.report.exact for answer in answers)
    exact = Searcher.open(living.index, impact_search="postings").search(TOPICS, 10)
    found = {answer.query.qid: {hit.docid: hit.score for hit in answer.hits} for answer in answers}
    shared = [
        hit for qid, hits in exact.items() for hit in hits if found[qid].get(hit.docid) == hit.score
    ]
    assert len(shared) >= 40  # of 50; scores are exact, documents may be missing


def test_the_commands(
    living: Living, tmp_path: Path, postgres: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    topics = tmp_path / "topics.tsv"
    topics.write_text("".join(f"{query.qid}\t{query.text}\n" for query in TOPICS))
    at = ["--to", postgres, "--table", name]
    index = ["--index", str(living.index)]
    rows = len(living.documents)
    assert main(["servers", "load", *index, *at]) == 0
    assert f"in pgvector, table {name}: {rows} written; {rows} documents" in capfd.readouterr().err
    search = ["search", *index, "--topics", str(topics), "--filter", "year >= 2019", "--hits", "20"]
    through = ["--server", postgres, "--table", name]
    runs = [tmp_path / "a.trec", tmp_path / "b.trec"]
    assert main([*search, "--output", str(runs[0])]) == 0
    assert main([*search, "--output", str(runs[1]), *through, "--report", str(tmp_path / "r")]) == 0
    assert runs[0].read_bytes() == runs[1].read_bytes()
    assert "certified exact: 5 of 5; depth of lists: sum median 30" in capfd.readouterr().err
    assert all(json.loads(line)["exact"] for line in (tmp_path / "r").read_text().splitlines())
    assert main(["search", *index, *through, "--query", "sort a list of dates", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["server"] == {"server": "pgvector", "table": name, "exact": True}
    assert answer["report"]["exact"]
    shown = show(ShowTableConfig(where=postgres, table=name))
    assert (shown["state"], shown["rows"], shown["dim"]) == ("complete", rows, 16)
    assert main(["servers", "drop", "--from", postgres, "--table", name]) == 0
    assert main(["servers", "show", "--from", postgres, "--table", name]) == 2
    error = capfd.readouterr().err
    assert f"no table '{name}'" in error
    assert main([*search, "--output", str(runs[1]), *through]) == 2
    assert "into it with dupmae-ir servers load" in capfd.readouterr().err


def test_passwords_come_from_the_environment(
    living: Living,
    postgres: str,
    name: str,
    sql: Sql,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for url in ("postgresql://me:hunter2@db/x", "postgresql://db/x?password=hunter2"):
        assert main(["servers", "load", "--index", str(living.index), "--to", url]) == 2
        error = capfd.readouterr().err
        assert "hunter2" not in error
        assert error.count("\n") == 1
        assert "PGPASSWORD" in error
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    load(living, postgres, name)  # libpq reads it; this server trusts its socket
    assert "hunter2" not in "".join(capfd.readouterr())
