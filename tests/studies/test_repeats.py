"""Means and variances over repeated runs, by hand and by numpy, and the curve over steps."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import repeats
from repeats import Repeats, main
from study import save


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two queries; a run's name gives the ranks of their answers, so ``r12`` has the reciprocal ranks 1 and 1/2."""
    monkeypatch.chdir(tmp_path)
    Path("qrels").write_text("a 0 x 1\nb 0 x 1\n")
    for first in (1, 2, 4):
        for second in (1, 2, 4):
            lines = []
            for qid, place in (("a", first), ("b", second)):
                for rank in range(1, 6):
                    docid = "x" if rank == place else f"y{rank}"
                    lines.append(f"{qid} Q0 {docid} {rank} {10 - rank} t\n")
            Path(f"r{first}{second}").write_text("".join(lines))
    return tmp_path


def test_by_hand_and_by_numpy(files, capsys):
    """RR: r11 1, r12 3/4, r22 1/2; mean 3/4, sample variance 1/16."""
    assert main(["--qrels", "qrels", "A=r11", "A=r12", "A=r22", "B=r24", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    a, b = found["rows"]
    assert (a["values"], b["values"], b["deviation"], b["step"]) == (
        [1, 0.75, 0.5],
        [0.375],
        None,
        None,
    )
    assert (a["mean"], a["deviation"]) == (0.75, 0.25)
    assert a["deviation"] == pytest.approx(np.std(a["values"], ddof=1))
    assert found["measure"] == "MRR@10"


def test_masters_notation():
    """Percent and the variance of percent: deviation 0.25 is 25 points, 625 squared."""
    assert Repeats("A", None, (1.0, 0.75, 0.5)).points == "75.0 (625.000)"
    assert Repeats("A", None, (0.3831,)).points == "38.3"


def test_steps_ascend_and_systems_keep_their_order(files, capsys):
    runs = ["B@20=r11", "A@9=r12", "B@3=r22", "A@10=r11", "A@9=r14"]
    assert main(["--qrels", "qrels", *runs]) == 0
    body = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[:3] for line in body] == [
        ["B", "3", "1"],
        ["B", "20", "1"],
        ["A", "9", "2"],
        ["A", "10", "1"],
    ]


def test_the_curve(files, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        repeats, "save", lambda made, output: (drawn.append(made), save(made, output))
    )
    runs = ["A@1000=r44", "A@5000=r12", "A@5000=r14", "B@1000=r22", "B@5000=r11"]
    assert main(["--qrels", "qrels", *runs, "--output", "curve.svg", "--format", "markdown"]) == 0
    out, err = capsys.readouterr()
    assert err == "picture: curve.svg\n"
    assert "| A | 5,000 | 2 |" in out
    ET.parse("curve.svg")
    (axes,) = drawn[0].axes
    curves = {c.get_label(): c.lines[0].get_xydata().tolist() for c in axes.containers}
    assert curves == {"A": [[1000, 0.25], [5000, 0.6875]], "B": [[1000, 0.5], [5000, 1.0]]}
    (bars,) = axes.containers[0].lines[2]
    low, high = bars.get_segments()[1][:, 1]
    assert (low, high) == pytest.approx(
        (0.6875 - np.std([0.75, 0.625], ddof=1), 0.6875 + np.std([0.75, 0.625], ddof=1))
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r11"], "r11: must be SYSTEM=FILE"),
        (["A@x=r11"], "with a whole number of steps"),
        (["A=r11", "A=r11"], "A=r11: given twice"),
        (["A=r11", "--output", "x.svg"], "name the runs SYSTEM@STEP=FILE"),
        (["A=r11", "--output", "x.html"], "ends in .svg, .png, .pdf"),
        (["A=gone"], "gone"),
    ],
)
def test_misuse_is_one_line(files, capsys, arguments, message):
    assert main(["--qrels", "qrels", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err
