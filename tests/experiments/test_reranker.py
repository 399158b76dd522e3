"""The measurements of the reranker: ways to use its scores, and the rule."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import reranker
from question_sets import QuestionSet


class CountsWords:
    """A reranker that prefers long texts."""

    def scores(self, query: str, documents: list) -> list[float]:
        return [float(len(document.text.split())) for document in documents]


def test_what_is_not_read_is_below() -> None:
    hybrid = np.array([[5.0, 4.0, 3.0]])
    ways = reranker.scores_by_way(hybrid, np.array([[-9.0, np.nan, 1.0]]))
    assert ways[reranker.HYBRID].argsort().tolist() == [[2, 1, 0]]
    assert ways[reranker.ALONE].argsort().tolist() == [[1, 0, 2]]
    assert ways["hybrid + 0.5"].tolist() == [[0.5, reranker.BELOW, 3.5]]


def test_a_sample_does_not_depend_on_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reranker, "GENERAL_PAIRS", 3)
    monkeypatch.setattr(reranker, "CODE_PAIRS", 1)
    lines = [json.dumps({"query": f"question {number}"}) + "\n" for number in range(20)]
    drawn = []
    for order in (lines, lines[::-1]):
        for name, part in (("general", order), ("code", order)):
            with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt", encoding="utf-8") as f:
                f.writelines(part)
        words = ["sample"]
        for name in ("general", "code"):
            words += [f"--{name}", str(tmp_path / f"{name}.jsonl.gz")]
        assert reranker.main([*words, "--output", str(tmp_path / "pairs.jsonl.gz")]) == 0
        drawn.append((tmp_path / "pairs.jsonl.gz").read_bytes())
    assert drawn[0] == drawn[1]
    rows = [json.loads(line)["query"] for line in gzip.decompress(drawn[0]).splitlines()]
    assert len(rows) == 4
    assert len(set(rows[:3])) == 3
    assert rows[3] == rows[0]


def test_the_first_hits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranker, "DEPTH", 2)
    found = QuestionSet()
    texts = [
        "an engine",
        "an engine that turns and turns",
        "bread of wheat and rye and water and salt",
    ]
    found.documents = {f"d{number}": ("", text) for number, text in enumerate(texts)}
    found.questions = [("engine", ["d1"]), ("engine", ["d2"])]
    found.write(tmp_path / "c")
    record = reranker.measure(tmp_path / "c", CountsWords())
    # Of the two that are read, the longer one is first; the third is longer still, and is not read.
    assert list(record[reranker.ALONE].values()) == [1.0, 0.5]
    assert set(record) == {
        "hybrid",
        "reranker alone",
        *(f"hybrid + {w:g}" for w in reranker.WEIGHTS),
    }


@pytest.mark.parametrize(("loss", "verdict"), [(0.0, "met"), (0.2, "not met")])
def test_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: float, verdict: str
) -> None:
    queries = range(80)
    before = {str(q): 0.1 * (q % 7) for q in queries}
    better = {str(q): value + 0.05 + 0.01 * (int(q) % 2) for q, value in before.items()}
    worse = {q: value - loss for q, value in before.items()}
    for name in reranker.COLLECTIONS:
        after = worse if name == "cacm" else better
        record = {"hybrid": before, "reranker alone": worse, "hybrid + 2": after}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    assert reranker.main(["compare", str(tmp_path)]) == 0
    chosen, _, last = capsys.readouterr().out.splitlines()[-3:]
    assert chosen == "dev chooses: hybrid + 2"
    assert last.endswith(f"the rule is {verdict}")
    (tmp_path / "demo.json").unlink()
    assert reranker.main(["compare", str(tmp_path)]) == 2
    assert "demo.json: is missing" in capsys.readouterr().err
