"""Fusion against its formulas written out, against Pyserini's own class, and as a command."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.io.runs import read_run, write_run
from dupmae_ir.search.fusion import Fusion, fuse, interpolate, main, pyserini_hybrid, rrf
from dupmae_ir.types import Hit

DENSE = [Hit("a", 9.0), Hit("b", 5.0), Hit("c", 1.0)]
IMPACT = [Hit("b", 40.0), Hit("d", 20.0)]


def test_reciprocal_ranks_by_hand() -> None:
    assert rrf([DENSE, IMPACT]) == [Hit("b", 1 / 62 + 1 / 61), Hit("a", 1 / 61), Hit("d", 1 / 62), Hit("c", 1 / 63)]
    assert rrf([DENSE, IMPACT], rrf_k=0)[1] == Hit("a", 1.0)
    assert rrf([]) == []


def test_equal_sums_are_in_docid_order_for_any_order_of_the_lists() -> None:
    a, b, c = [Hit("z", 1.0)], [Hit("y", 7.0)], [Hit("x", 3.0)]
    for lists in itertools.permutations([a, b, c]):
        assert [hit.docid for hit in rrf(lists)] == ["x", "y", "z"]


def test_score_of_a_missing_document() -> None:
    def scores(missing: str, normalize: bool = False) -> dict[str, float]:
        exact = (lambda docs: [3.0 for _ in docs], lambda docs: [8.0 for _ in docs])
        return dict(interpolate(DENSE, IMPACT, 0.25, normalize, missing, exact))

    assert scores("zero") == {"b": 0.25 * 5 + 0.75 * 40, "d": 0.75 * 20, "a": 0.25 * 9, "c": 0.25}
    assert scores("min") == {"b": 31.25, "d": 0.25 + 15, "a": 2.25 + 15, "c": 0.25 + 15}
    assert scores("exact") == {"b": 31.25, "d": 0.75 + 15, "a": 2.25 + 6, "c": 0.25 + 6}
    assert scores("zero", normalize=True) == {"b": 0.25 * 0.5 + 0.75, "d": 0.0, "a": 0.25, "c": 0.0}
    # On the list's own scale a true score may lie below its range: (8 - 20) / 20.
    assert scores("exact", normalize=True)["a"] == pytest.approx(0.25 + 0.75 * (8 - 20) / 20)


def test_degenerate_lists() -> None:
    assert interpolate([], [], normalize=True) == []
    assert interpolate([Hit("a", 3.0)], [], normalize=True) == [Hit("a", 0.5)]
    assert interpolate([], IMPACT, 0.5, missing="min") == [Hit("b", 20.0), Hit("d", 10.0)]
    assert pyserini_hybrid([Hit("a", 2.0)], [Hit("a", 2.0)], normalization=True) == [Hit("a", 0.0)]
    with pytest.raises(UsageError, match="missing=exact needs an index"):
        interpolate(DENSE, IMPACT, missing="exact")


def random_list(rng: np.random.Generator) -> list[Hit]:
    docs = rng.permutation(12)[: int(rng.integers(0, 9))]
    hits = [Hit(f"d{d}", float(s)) for d, s in zip(docs, rng.random(len(docs)) * 30, strict=True)]
    return sorted(hits, key=lambda h: -h.score)


@pytest.mark.jvm
@pytest.mark.parametrize("normalization", [False, True])
@pytest.mark.parametrize("weight_on_dense", [False, True])
def test_equals_the_pyserini_class(normalization: bool, weight_on_dense: bool) -> None:
    from dupmae_ir.pyserini import HybridSearcher

    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(200):
        dense, sparse = random_list(rng), random_list(rng)
        if normalization and 1 in (len(dense), len(sparse)):
            continue  # Pyserini divides by zero here
        theirs = HybridSearcher._hybrid_results(dense, sparse, 0.3, 10, normalization, weight_on_dense)
        fusion = Fusion("pyserini", alpha=0.3, normalize=normalization, weight_on_dense=weight_on_dense)
        ours = fuse(fusion, dense, sparse, 10)
        # The same numbers, not almost; its order among equals follows a set, so compare values there.
        assert [h.score for h in ours] == [h.score for h in theirs]
        assert {h.docid: h.score for h in ours[:-1] if h.score != ours[-1].score} == {
            h.docid: h.score for h in theirs[:-1] if h.score != ours[-1].score
        }
        compared += 1
    assert compared > 100


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "rrff"}, "Did you mean 'rrf'"),
        ({"method": "rrf", "alpha": 0.1}, "`alpha` applies only with `method` interpolation or with `method` pyserini"),
        ({"method": "rrf", "rrf_k": -1}, "`rrf_k` must be at least 0"),
        ({"method": "pyserini", "missing": "zero", "alpha": None, "normalize": True}, None),
        ({"method": "pyserini", "missing": "exact"}, "`missing` applies only with `method` interpolation"),
        ({"method": "interpolation", "alpha": 1.5}, "between 0 and 1"),
        ({"method": "interpolation", "missing": "none"}, "choose from zero, min, exact"),
        ({"method": "interpolation", "weight_on_dense": True}, "`weight_on_dense` applies only with `method` pyserini"),
    ],
)
def test_parameters_without_effect_are_refused(settings: dict, says: str | None) -> None:
    if says is None:
        Fusion(**settings)
        return
    with pytest.raises(UsageError, match=says):
        Fusion(**settings)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str, str]:
    paths = tuple(str(tmp_path / name) for name in ("dense.trec", "impact.trec", "fused.trec"))
    write_run(paths[0], {"1": DENSE, "2": DENSE}, "dense", "trec")
    write_run(paths[1], {"1": IMPACT}, "impact", "trec")
    return paths  # type: ignore[return-value]


def test_the_command(runs: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    dense, impact, output = runs
    assert main([dense, impact, "--output", output, "--hits", "2"]) == 0
    assert "2 queries by rrf from 2 runs; 1 of them not in every run" in capsys.readouterr().err
    fused = read_run(output)
    assert {q: [h.docid for h in hits] for q, hits in fused.items()} == {"1": ["b", "a"], "2": ["a", "b"]}
    assert main([dense, impact, "--output", output, "--method", "pyserini", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == 2
    assert dict(read_run(output)["1"]) == pytest.approx(dict(pyserini_hybrid(DENSE, IMPACT)), rel=1e-6)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "two or more run files"),
        (["again", "again", "--method", "interpolation"], "joins exactly two runs, got 3"),
        (["no/such/run"], "no/such/run: no such file"),
        (["again", "--hits", "0"], "--hits must be at least 1"),
        (["again", "--missing", "min"], "--missing applies only with --method interpolation"),
    ],
)
def test_misuse(runs: tuple[str, str, str], capsys: pytest.CaptureFixture[str], more: list[str], says: str) -> None:
    dense, _, output = runs
    assert main([dense, *(dense if m == "again" else m for m in more), "--output", output]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not Path(output).exists()


def test_runs_as_a_module_without_a_warning(runs: tuple[str, str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "dupmae_ir.search.fusion", *runs[:2], "--output", runs[2], "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
