"""CoT-MoTE's Eq. 14-19 against a case worked out by hand, and the command on texts without weights."""

from __future__ import annotations

import builtins
import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import space
from space import (
    Divergence,
    ModelComparison,
    Space,
    SpaceConfig,
    cosine_distances,
    density,
    density_divergence,
    divergence,
    main,
    tsne,
)
from study import save

from dupmae_ir.errors import EnvironmentProblem, UsageError


def test_by_hand():
    """Distances [[0, ln 2], [0, 0]]: exp(-d) is [[1, 1/2], [1, 1]], its sum 7/2.

    p1 = [[2, 1], [2, 2]] / 7, p2 = [[2, 2], [1, 2]] / 7, and only the two corners differ:
    KL = 1/7 ln(1/2) + 2/7 ln 2 = ln(2) / 7; the average's corners are 3/14, so by symmetry
    JS = 1/7 ln(2/3) + 2/7 ln(4/3).
    """
    found = divergence(np.array([[0, math.log(2)], [0, 0]]))
    assert found.kl == pytest.approx(math.log(2) / 7, rel=1e-14)
    assert found.js == pytest.approx(math.log(2 / 3) / 7 + 2 * math.log(4 / 3) / 7, rel=1e-14)


def test_distances_by_hand():
    q = np.array([[2.0, 0], [1, 1]])
    p = np.array([[0, 3.0], [5, 0], [0, 0]])
    half = 1 - math.sqrt(0.5)
    np.testing.assert_allclose(cosine_distances(q, p), [[1, 0, 1], [half, half, 1]], atol=1e-15)


def test_it_is_scipys_entropy_and_jensen_shannon():
    rng = np.random.default_rng(0)
    d = cosine_distances(rng.standard_normal((30, 8)), rng.standard_normal((30, 8)))
    found = divergence(d)
    # scipy normalises
    p1 = np.exp(-d).ravel()
    p2 = np.exp(-d.T).ravel()
    assert found.kl == pytest.approx(scipy.stats.entropy(p1, p2), rel=1e-12)
    middle = (p1 / p1.sum() + p2 / p2.sum()) / 2
    assert found.js == pytest.approx(
        (scipy.stats.entropy(p1, middle) + scipy.stats.entropy(p2, middle)) / 2, rel=1e-12
    )


def test_alike_sides_do_not_diverge():
    v = np.random.default_rng(1).standard_normal((10, 4))
    assert divergence(cosine_distances(v, v)) == pytest.approx((0, 0), abs=1e-15)


def test_the_lists_must_pair():
    with pytest.raises(ValueError, match=r"got \(2, 3\)"):
        divergence(np.zeros((2, 3)))


def test_tsne_keeps_clusters_apart_and_repeats_itself():
    rng = np.random.default_rng(2)
    centres = np.repeat(np.eye(3), 15, axis=0)
    vectors = centres + 0.05 * rng.standard_normal(centres.shape)
    points = tsne(vectors, perplexity=5, seed=3)
    assert points.shape == (45, 2)
    np.testing.assert_array_equal(points, tsne(vectors, perplexity=5, seed=3))
    # Cosine distance: the length of a vector does not matter.
    np.testing.assert_allclose(
        points, tsne(vectors * 7.0, perplexity=5, seed=3), rtol=1e-3, atol=1e-3
    )
    middles = points.reshape(3, 15, 2).mean(axis=1)
    spread = np.linalg.norm(points.reshape(3, 15, 2) - middles[:, None], axis=2).max()
    apart = min(np.linalg.norm(middles[i] - middles[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert apart > 2 * spread


def test_the_error_without_scikit_learn(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(EnvironmentProblem, match="pip install scikit-learn"):
        tsne(np.eye(3), 1)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    texts = [" ".join(rng.choice(words, 8)) for _ in range(12)]
    (tmp_path / "q.tsv").write_text(
        "".join(f"q{i}\t{' '.join(t.split()[:3])}\n" for i, t in enumerate(texts))
    )
    # Another order than the queries', and one passage that belongs to none.
    lines = [{"_id": f"d{i}", "text": t} for i, t in [*enumerate(texts)][::-1]] + [
        {"_id": "other", "text": "w1"}
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "paired.jsonl").write_text("\n".join(map(json.dumps, lines[:-1][::-1])))
    judged = [f"q{i} 0 d{i} 1\nq{i} 0 other 0\n" for i in range(12)] + ["q99 0 d1 1\n"]
    (tmp_path / "qrels").write_text("".join(judged))
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMON = ["--model", "testing:hashing", "--queries", "q.tsv", "--quiet"]
JUDGED = [*COMMON, "--passages", "p.jsonl", "--qrels", "qrels"]


def numbers(capsys) -> dict[str, float]:
    found = json.loads(capsys.readouterr().out)
    assert found.pop("model") == "testing:hashing"
    return found


def test_judgements_pair_what_the_order_of_files_pairs(files, capsys):
    assert main([*JUDGED, "--json"]) == 0
    judged = numbers(capsys)
    assert main([*COMMON, "--passages", "paired.jsonl", "--json"]) == 0
    paired = numbers(capsys)
    assert (paired["kl"], paired["js"]) == pytest.approx((judged["kl"], judged["js"]), rel=1e-9)
    assert (judged["pairs"], judged["of"], judged["draws"], judged["kl_deviation"]) == (
        12,
        12,
        1,
        None,
    )
    assert 0 < judged["js"] < judged["kl"]


def test_draws_are_averaged_and_seeded(files, capsys):
    drawn = [*JUDGED, "--pairs", "6", "--draws", "4", "--json"]
    found = []
    for seed in ("0", "0", "1"):
        assert main([*drawn, "--seed", seed]) == 0
        found.append(numbers(capsys))
    assert found[0] == found[1] != found[2]
    assert (found[0]["draws"], found[0]["pairs"]) == (4, 6)
    assert found[0]["kl_deviation"] > 0


@pytest.fixture
def drawn(monkeypatch) -> list:
    """The figures that are saved."""
    figures = []
    monkeypatch.setattr(
        space, "save", lambda made, output: (figures.append(made), save(made, output))
    )
    return figures


def test_the_picture(files, capsys, drawn):
    for name in ("out/space.svg", "space.png"):
        assert main([*JUDGED, "--perplexity", "5", "--output", name]) == 0
        assert "KL (Eq. 17)" in (out := capsys.readouterr().out)
        assert "kernel densities: KL" in out
        assert Path(name).stat().st_size > 1000
    ET.parse("out/space.svg")
    queries, passages, *contours = drawn[0].axes[0].collections
    queries, passages = (
        next(c for c in (queries, passages, *contours) if c.get_label() == n)
        for n in ("queries", "passages")
    )
    assert len(queries.get_offsets()) == len(passages.get_offsets()) == 12


SEVERAL = [*JUDGED, "--model", "testing:hashing"]


def test_several_models_share_the_pairs_and_are_tested(files, capsys):
    """The same encoder twice: equal averages, and no difference (p = 1). The draws are disjoint if they can be."""
    arguments = [*SEVERAL, "--name", "A", "B", "--pairs", "4", "--json"]
    assert main([*arguments, "--draws", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    a, b = found["models"]
    assert (a.pop("model"), b.pop("model")) == ("A", "B")
    assert a == b
    assert found["disjoint"] is True
    assert [(t["divergence"], t["p"], t["mark"]) for t in found["tests"]] == [
        ("kl", 1.0, "ns"),
        ("js", 1.0, "ns"),
    ]
    assert main([*arguments, "--draws", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["disjoint"] is False


def test_the_tests_are_scipys():
    rng = np.random.default_rng(5)
    draws = rng.random((3, 8, 2)) + np.array([0, 0.1, 2])[:, None, None]
    spaces = [
        Space(name, 99, 9, tuple(map(Divergence._make, rows)), None)
        for name, rows in zip("abc", draws, strict=True)
    ]
    tests = ModelComparison(tuple(spaces), True).tests()
    assert [(t.first + t.second, t.divergence) for t in tests] == [
        (pair, name) for name in ("kl", "js") for pair in ("ab", "ac", "bc")
    ]
    for test in tests:
        x, y = (
            draws["abc".index(m), :, ("kl", "js").index(test.divergence)]
            for m in (test.first, test.second)
        )
        p = scipy.stats.ttest_rel(x, y).pvalue
        assert test.p == pytest.approx(p, rel=1e-9)
        assert test.mark == (
            "****"
            if p <= 1e-4
            else "***"
            if p <= 1e-3
            else "**"
            if p <= 0.01
            else "*"
            if p <= 0.05
            else "ns"
        )


def test_the_figure_of_several_models(files, capsys, drawn):
    arguments = [*SEVERAL, "--name", "A", "B", "--pairs", "6", "--draws", "2", "--perplexity", "5"]
    assert main([*arguments, "--output", "four.svg"]) == 0
    assert "draws share pairs" not in capsys.readouterr().out
    a, b, kl, js = drawn[0].axes
    assert (a.get_title(), b.get_title()) == ("A", "B")
    assert [len(bars.patches) for bars in (kl, js)] == [2, 2]
    assert [[text.get_text() for text in bars.texts] for bars in (kl, js)] == [["ns"], ["ns"]]


def test_density_is_the_gaussian_kernel_by_hand():
    """Scott's bandwidth: covariance of the points times n^(-2/6); the mean of n Gaussians."""
    points = np.random.default_rng(6).standard_normal((7, 2))
    at = np.array([[0.3, -0.2], [1.0, 1.0]])
    spread = np.cov(points.T) * 7 ** (-2 / 6)
    each = [[scipy.stats.multivariate_normal(p, spread).pdf(x) for p in points] for x in at]
    np.testing.assert_allclose(density(points, at), np.mean(each, axis=1), rtol=1e-12)


def test_alike_densities_do_not_diverge_and_distant_ones_do():
    rng = np.random.default_rng(8)
    a = rng.standard_normal((50, 2))
    assert density_divergence(a, a) == pytest.approx((0, 0), abs=1e-12)
    near, far = (density_divergence(a, a + shift) for shift in (0.5, 5.0))
    assert 0 < near.js < far.js <= math.log(2)


def test_names_belong_to_models():
    for given in (
        {"name": ("x",)},
        {"model": ("a", "b"), "name": ("x", "x")},
        {"model": ("a", "a")},
    ):
        with pytest.raises(UsageError, match=r"one name per model|applies only with `model`"):
            SpaceConfig(queries="q", passages="p", **given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [*COMMON, "--passages", "p.jsonl"],
            "cannot be paired in order; give the pairs with --qrels",
        ),
        ([*JUDGED, "--pairs", "1"], "--pairs must be at least 2"),
        ([*JUDGED, "--draws", "0"], "--draws must be at least 1"),
        ([*JUDGED, "--output", "x.html"], "ends in .svg, .png, .pdf"),
        (
            [*JUDGED, "--output", "x.svg"],
            "--perplexity 30 must be at least 1 and less than the 24 points",
        ),
        ([*COMMON, "--passages", "p.jsonl", "--qrels", "none"], "make 0 pairs"),
    ],
)
def test_misuse_is_one_line(files, capsys, arguments, message):
    (files / "none").write_text("q99 0 d1 1\n")
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
