"""ir_measures and ranx read run files and judgements of this package, and give the same values."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dupmae_ir import evaluate
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run, write_run
from dupmae_ir.types import Hit


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """(judgements, run) of 20 queries; the scores of a query are different."""
    rng = np.random.default_rng(0)
    grades = [(q, d, g) for q in range(20) for d, g in enumerate(rng.integers(0, 4, 30).tolist())]
    (tmp_path / "qrels").write_text("".join(f"{q} 0 d{d} {g}\n" for q, d, g in grades))
    run = {
        str(q): [Hit(f"d{d}", float(s)) for d, s in enumerate(rng.permutation(60))]
        for q in range(20)
    }
    write_run(tmp_path / "run.trec", run)
    return str(tmp_path / "qrels"), str(tmp_path / "run.trec")


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def test_ir_measures_gives_the_same_values(files):
    ir_measures = imported("ir_measures")
    qrels, run = files
    measures = [ir_measures.nDCG @ 10, ir_measures.AP(rel=2), ir_measures.R @ 20]
    theirs = ir_measures.calc_aggregate(
        measures, list(ir_measures.read_trec_qrels(qrels)), list(ir_measures.read_trec_run(run))
    )
    ours = evaluate(read_qrels(qrels), read_run(run), [str(m) for m in measures]).mean
    assert ours == pytest.approx({str(m): v for m, v in theirs.items()}, abs=1e-12)


def test_ranx_gives_the_same_values(files):
    ranx = imported("ranx")
    qrels, run = files
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = ranx.evaluate(
            ranx.Qrels.from_file(qrels, kind="trec"),
            ranx.Run.from_file(run, kind="trec"),
            "ndcg@10",
        )
    assert evaluate(read_qrels(qrels), read_run(run), ["nDCG@10"]).mean["nDCG@10"] == pytest.approx(
        value, abs=1e-9
    )
