"""benchmarks/machine.py at a tiny size: every figure, the comparison, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dupmae_ir import pyserini
from dupmae_ir.errors import DupmaeError
from dupmae_ir.models import WEIGHTLESS
from dupmae_ir.search.candidates.impact import ImpactPart

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import machine

NAMES = (
    machine.WORDS_SEARCHED,
    machine.MEANING_SEARCHED,
    "encode, both parts",
    "first answer of a new process",
    "open an index, and its first query",
    "one query, hybrid, 10 hits, median",
    "one query, hybrid, 10 hits, 99th percentile",
    "impacts by postings, 10 hits, one thread",
    "impacts by lucene, 10 hits, one thread",
    "all queries at once, hybrid, 1,000 hits",
)
TINY = ["--documents", "30", "--rounds", "1", "--model", WEIGHTLESS, "--quiet"]


@pytest.mark.nightly
@pytest.mark.jvm
def test_every_figure_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.main([*TINY, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert tuple(measure["name"] for measure in result["measures"]) == NAMES
    assert all(measure["value"] > 0 for measure in result["measures"])
    values = {measure["name"]: measure["value"] for measure in result["measures"]}
    assert values[machine.WORDS_SEARCHED] <= values[machine.MEANING_SEARCHED]
    median, slow = (name for name in NAMES if name.startswith(machine.ONE_QUERY))
    assert values[median] <= values[slow]
    assert (result["documents"], result["recorded"]) == (30, [])
    assert result["machine"]["cores"] >= 1


@pytest.mark.jvm
def test_engines_that_differ_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    top = ImpactPart.top
    calls = iter(range(1000))
    monkeypatch.setattr(
        ImpactPart,
        "top",
        lambda self, queries, depth: top(self, queries, depth - (next(calls) > 1)),
    )
    assert machine.main(TINY) == 1
    assert "Lucene and the postings have different hits" in capsys.readouterr().err


def test_without_pyserini_lucene_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyserini, "installed", lambda: False)
    monkeypatch.setattr(machine, "_first_answer", lambda *_: 1.0)
    result = machine.run(30, 1, WEIGHTLESS, quiet=True)
    assert [measure["name"] for measure in result["measures"]] == [
        name for name in NAMES if "lucene" not in name
    ]


def test_recorded_machines_did_the_same_work() -> None:
    recorded = machine.records()
    assert recorded
    for record in recorded:
        assert tuple(measure["name"] for measure in record["measures"]) == NAMES
        assert record["documents"] == machine.DOCUMENTS
        assert record["machine"]["processor"]


def record(value: float, rate: float) -> dict[str, Any]:
    measures = [
        {"name": "first", "value": value, "unit": "s", "more_is_better": False},
        {"name": "encode", "value": rate, "unit": "documents/s", "more_is_better": True},
    ]
    machine = {"processor": "P", "cores": 2, "versions": {"torch": "2"}}
    return {
        "machine": machine,
        "load_average": 0.5,
        "documents": 2000,
        "measures": measures,
        "recorded": [],
    }


def test_more_than_one_means_better_here() -> None:
    text = machine.show({**record(0.5, 400.0), "recorded": [record(2.0, 100.0)]})
    first, encoded = (
        next(line for line in text.splitlines() if line.startswith(n)) for n in ("first", "encode")
    )
    assert "0.5 s" in first
    assert "2 (4.00x)" in first
    assert "100 (4.00x)" in encoded
    assert "machine 1: P, 2 cores, torch 2, load average 0.5 before" in text


def test_a_search_that_fails_is_one_line(tmp_path: Any) -> None:
    with pytest.raises(DupmaeError, match="dupmae-ir search ended with status"):
        machine._first_answer(tmp_path / "none", "a query")
