from __future__ import annotations

import gzip
from itertools import pairwise

import numpy as np
import pytest

from dupmae_ir.errors import InputError, OutputError, UnknownName, UsageError
from dupmae_ir.io.runs import open_run, read_run, strictly_decreasing, trec_order, write_run
from dupmae_ir.types import Hit, best_first

RNG = np.random.default_rng(7)


def by_steps(scores: list[float]) -> list[np.float32]:
    """The definition, one nextafter at a time."""
    out: list[np.float32] = []
    for score in np.asarray(scores, np.float32):
        out.append(
            score if not out or score < out[-1] else np.nextafter(out[-1], np.float32(-np.inf))
        )
    return out


@pytest.mark.parametrize(
    "scores",
    [
        [],
        [1.0],
        [1.0, 1.0, 1.0],
        [3, 2, 1],
        [0.0, -0.0, 0.0],
        [1e-45, 0.0, 0.0, -1e-45],
        [-5.0, -5.0],
        [16777217.0, 16777216.0, 1.0],
        [1 + 1e-12, 1.0],
        [1.0, 1.0, 1 - 1e-9, 0.5],
        sorted(RNG.integers(0, 30, 1000).tolist(), reverse=True),
        sorted(RNG.normal(size=1000).round(2).tolist(), reverse=True),
    ],
)
def test_strictly_decreasing_is_the_nearest_float_below(scores):
    got = strictly_decreasing(np.array(scores, np.float64))
    assert got.dtype == np.float32
    assert all(a > b for a, b in pairwise(got))
    np.testing.assert_array_equal(got, np.array(by_steps(scores), np.float32))


@pytest.mark.parametrize(
    "scores", [[1, 2], [1, 1 + 1e-12], [np.nan], [np.inf], [1e39], [-3.4028234663852886e38] * 2]
)
def test_strictly_decreasing_refuses(scores):
    with pytest.raises(ValueError, match=r"scores must|no float32"):
        strictly_decreasing(np.array(scores))


def test_trec_eval_reads_back_our_order(tmp_path):
    run = {
        f"q{q}": [
            Hit(f"d{d}", s / 7)
            for d, s in zip(RNG.permutation(500), RNG.integers(0, 9, 500), strict=True)
        ]
        for q in range(5)
    }
    write_run(tmp_path / "run", run, "tag")
    back = read_run(tmp_path / "run", warn=pytest.fail)
    assert list(back) == list(run)
    for qid, hits in run.items():
        ours = [h.docid for h in best_first(hits)]
        assert [h.docid for h in back[qid]] == ours
        assert trec_order(dict(back[qid])) == ours
        np.testing.assert_allclose(
            [h.score for h in back[qid]], [h.score for h in best_first(hits)], atol=1e-4
        )
    # Written again, nothing moves any more.
    write_run(tmp_path / "again", back, "tag")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "run").read_bytes()


def test_trec_order_is_pytrec_evals():
    """The rank at which pytrec_eval sees each document, against ours, on scores that only a double tells apart."""
    import pytrec_eval

    scores = {f"d{i}": 1 + (i % 3) * 1e-12 + (i % 2) * 0.5 for i in range(20)}
    for rank, docid in enumerate(trec_order(scores), 1):
        seen = pytrec_eval.RelevanceEvaluator({"q": {docid: 1}}, {"recip_rank"}).evaluate(
            {"q": scores}
        )
        assert seen["q"]["recip_rank"] == pytest.approx(1 / rank)


def test_formats(tmp_path):
    run = {"7": [Hit("b", 1.0), Hit("a", 1.0)], "8": []}
    write_run(tmp_path / "t", run, "me")
    assert (tmp_path / "t").read_text() == "7 Q0 a 1 1 me\n7 Q0 b 2 0.99999994 me\n"
    write_run(tmp_path / "m", run, "me", format="msmarco")
    assert (tmp_path / "m").read_text() == "7\ta\t1\n7\tb\t2\n"
    assert read_run(tmp_path / "m") == {"7": [Hit("a", 1.0), Hit("b", 0.5)]}


def test_reads_gzip_any_order_and_unicode_ids(tmp_path):
    odd = "caf\u00e9\u00a0bar"
    text = f"q Q0 x 2 1.5 t\np Q0 {odd} 1 -2e0 t\n\nq\tQ0\ty\t1\t2\tt\r\n"
    (tmp_path / "run.bin").write_bytes(gzip.compress(text.encode()))
    assert read_run(tmp_path / "run.bin") == {
        "q": [Hit("y", 2.0), Hit("x", 1.5)],
        "p": [Hit(odd, -2.0)],
    }


def test_warns_where_ranks_and_trec_eval_disagree(tmp_path):
    (tmp_path / "r").write_text(
        "1 Q0 a 1 1 t\n1 Q0 b 2 2 t\n2 Q0 a 1 5 t\n2 Q0 b 2 5 t\n3 Q0 b 1 5 t\n3 Q0 a 2 5 t\n"
    )
    said: list[str] = []
    read_run(tmp_path / "r", warn=said.append)
    assert len(said) == 2
    assert "ranks contradict scores in 1 of 3 queries" in said[0]
    assert "equal scores in 1 of 3 queries" in said[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"q Q0 d 1 1.0\n", r"run:1: expected 6 columns .* got 5"),
        (b"q Q0 d 1 1.0 t\nq d 2\n", r"run:2: expected 6 columns as before, got 3"),
        (b"q Q0 d 1 high t\n", r"run:1: score 'high' is not a number"),
        (b"q Q0 d 1 nan t\n", r"run:1: score 'nan' is not a finite"),
        (b"q Q0 d 1 inf t\n", r"run:1: score 'inf' is not a finite"),
        (b"q Q0 d 1 1e39 t\n", r"run:1: score '1e39' is not a finite 32-bit"),
        (b"q Q0 d 1 1_0 t\n", r"run:1: score '1_0' is not a finite"),
        (b"q Q0 d 1 2 t\nq Q0 d 2 1 t\n", r"run:2: document 'd' is listed twice for query 'q'"),
        (b"q d 0\n", r"run:1: rank '0' is not a whole number"),
        (b"", r"run is empty"),
        (b"\n \n", r"run is empty"),
        (b"q Q0 \xff\xfe 1 1 t\n", r"run:1: not UTF-8"),
        (b"a\0b\n", r"run:1: a binary file"),
        (gzip.compress(b"q Q0 d 1 1 t\n", mtime=0)[:-6], r"run: damaged gzip file"),
    ],
)
def test_bad_runs_name_file_and_line(tmp_path, content, message):
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(InputError, match=message) as e:
        read_run(tmp_path / "run")
    assert "\n" not in str(e.value)
    assert e.value.exit_status == 2


def test_missing_and_folder(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_run(tmp_path / "absent")
    with pytest.raises(InputError, match="is a folder"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"q": [Hit("a", 1.0), Hit("a", 2.0)]}, "'a' is listed twice"),
        ({"q": [Hit("a b", 1.0)]}, "contains white space"),
        ({"q": [Hit("", 1.0)]}, "is empty"),
        ({"q 1": [Hit("a", 1.0)]}, "contains white space"),
        ({"q": [Hit("a", float("nan"))]}, "'a': score nan is not finite"),
        ({"q": [Hit("a", float("inf"))]}, "not finite"),
        ({"q": [Hit("a", 1e39)]}, "float32"),
    ],
)
def test_a_run_that_cannot_be_written_leaves_the_old_one(tmp_path, run, message):
    (tmp_path / "run").write_text("before")
    with pytest.raises(OutputError, match=message):
        write_run(tmp_path / "run", {"p": [Hit("x", 1.0)], **run}, "t")
    assert (tmp_path / "run").read_text() == "before"
    assert [f.name for f in tmp_path.iterdir()] == ["run"]


def test_writer_refuses_a_query_twice_and_odd_names(tmp_path):
    with open_run(tmp_path / "r", "t") as writer:
        writer.add("q", [])
        with pytest.raises(OutputError, match="occurs twice"):
            writer.add("q", [Hit("a", 1.0)])
    with pytest.raises(UsageError, match="one word"):
        write_run(tmp_path / "r", {}, "two words")
    with pytest.raises(UnknownName, match="Did you mean 'trec'"):
        write_run(tmp_path / "r", {}, "t", format="trek")
