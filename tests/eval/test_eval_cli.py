from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dupmae_ir.eval.__main__ import main

QRELS = "1 0 a 1\n2 0 b 2\n3 0 c 1\n"
RUN = "1 Q0 a 1 2.0 t\n1 Q0 x 2 1.0 t\n2 Q0 x 1 2.0 t\n2 Q0 b 2 1.0 t\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "q").write_text(QRELS)
    (tmp_path / "run.trec").write_text(RUN)
    (tmp_path / "other.tsv").write_text("1\tx\t1\n2\tb\t1\n9\tz\t1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_line_per_run(files, capsys):
    assert main(["--qrels", "q", "run.trec", "other.tsv", "-m", "MRR@10", "AP(rel=2)"]) == 0
    out, err = capsys.readouterr()
    assert "run.trec   0.5000*     0.1667\n" in out
    assert "other.tsv  0.3333      0.3333*\n" in out
    assert err == ""


def test_defaults_are_the_four_of_the_page(files, capsys):
    assert main(["--qrels", "q", "run.trec"]) == 0
    assert "nDCG@10  MRR@10   R@100     MAP" in capsys.readouterr().out


def test_measures_may_be_given_one_by_one_as_for_trec_eval(files, capsys):
    assert (
        main(["--qrels", "q", "run.trec", "-m", "MRR", "-m", "P@1", "MAP", "--format", "csv"]) == 0
    )
    assert capsys.readouterr().out.startswith("run,MRR,P@1,MAP,")


def test_json(files, capsys):
    assert (
        main(
            ["--qrels", "q", "run.trec", "-m", "MRR", "--json", "--no-complete", "--rel-level", "2"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["measures"] == [{"name": "MRR(rel=2)", "trec_eval": "-l 2 -m recip_rank"}]
    assert found["runs"][0]["values"] == {"MRR(rel=2)": 0.25}


def test_per_query_to_a_file_and_to_the_terminal(files, capsys):
    assert (
        main(["--qrels", "q", "run.trec", "-m", "MRR", "--per-query", "each.tsv", "--quiet"]) == 0
    )
    wanted = "run\tqid\tMRR\nrun.trec\t1\t1.0\nrun.trec\t2\t0.5\nrun.trec\t3\t0.0\n"
    assert (files / "each.tsv").read_text() == wanted
    assert "0.5000" in capsys.readouterr().out
    assert main(["--qrels", "q", "run.trec", "-m", "MRR", "--per-query", "-"]) == 0
    assert capsys.readouterr().out == wanted


def test_runs_with_the_same_name_are_shown_by_path(files, capsys):
    (files / "b").mkdir()
    (files / "b" / "run.trec").write_text(RUN)
    assert main(["--qrels", "q", "run.trec", "b/run.trec", "--format", "csv"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "run",
        "run.trec",
        "b/run.trec",
    ]


def test_notes_are_on_standard_error_and_quiet_suppresses_them(files, capsys):
    (files / "tied").write_text("1 Q0 a 1 1 t\n1 Q0 x 2 1 t\n")
    assert main(["--qrels", "q", "tied"]) == 0
    assert "equal scores in 1 of 1 queries" in capsys.readouterr().err
    assert main(["--qrels", "q", "tied", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--qrels", "absent", "run.trec"], "absent: no such file"),
        (["--qrels", "q", "absent"], "absent: no such file"),
        (["--qrels", "q", "run.trec", "absent"], "absent: no such file"),
        (["--qrels", ".", "run.trec"], "a folder without qrels/test.tsv"),
        (["--qrels", "q", "."], "is a folder"),
        (["--qrels", "q", "empty"], "empty is empty"),
        (["--qrels", "empty", "run.trec"], "empty is empty"),
        (["--qrels", "q", "binary"], "binary:1: a binary file"),
        (["--qrels", "q", "q"], "q:1: expected 6 columns"),
        (["--qrels", "run.trec", "run.trec"], "run.trec:1: expected 'qid 0 docid grade'"),
        (
            ["--qrels", "q", "elsewhere"],
            "elsewhere: the run and the judgements have no query in common",
        ),
        (["--qrels", "q", "run.trec", "run.trec"], "named twice"),
        (["--qrels", "q", "run.trec", "-m", "nDGC@10"], "Did you mean 'nDCG@10'?"),
        (["--qrels", "q", "run.trec", "-m", "R"], "needs a cutoff"),
        (["--qrels", "q", "run.trec", "--rel-level", "0"], "--rel-level must be at least 1, got 0"),
    ],
)
def test_misuse_is_one_line_and_status_2(files, capsys, arguments, message):
    (files / "empty").touch()
    (files / "binary").write_bytes(b"\0\1\2\n")
    (files / "elsewhere").write_text("PLAIN-1 Q0 a 1 1 t\n")
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dupmae-ir eval: ")
    assert message in err


@pytest.mark.skipif(
    os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="everything is readable to root"
)
def test_unreadable(files, capsys):
    (files / "run.trec").chmod(0)
    assert main(["--qrels", "q", "run.trec"]) == 2
    assert "not readable" in capsys.readouterr().err


def test_flags_are_checked(files, capsys):
    with pytest.raises(SystemExit) as e:
        main(["--qrels", "q"])
    assert e.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_reads_like_a_page(capsys):
    with pytest.raises(SystemExit) as e:
        main(["--help"])
    assert e.value.code == 0
    page = capsys.readouterr().out
    for wanted in (
        "Evaluate one or more runs",
        "example:",
        "--qrels PATH",
        "nDCG[@k]",
        "Judged@k",
        "trec_eval",
    ):
        assert wanted in page


def test_numbers_of_queries_and_documents_that_merely_coincide_are_no_self_hits(files, capsys):
    """As in Cranfield: the document with a query's number is anywhere in its list."""
    (files / "numbers.trec").write_text(
        "1 Q0 7 1 3.0 t\n1 Q0 1 2 2.0 t\n2 Q0 1 1 3.0 t\n2 Q0 9 2 2.0 t\n2 Q0 2 3 1.0 t\n"
    )
    assert main(["--qrels", "q", "numbers.trec", "-m", "MRR@10"]) == 0
    assert capsys.readouterr().err == ""


def test_self_hits_are_reported_with_their_number(files, capsys):
    (files / "own.trec").write_text("1 Q0 1 1 2.0 t\n1 Q0 a 2 1.0 t\n2 Q0 2 1 2.0 t\n")
    assert main(["--qrels", "q", "own.trec", "-m", "MRR@10"]) == 0
    err = capsys.readouterr().err
    assert "own.trec: 2 queries retrieve the document that has the query's own id (1, 2)" in err
    assert "--remove-query" in err
    assert err.count("\n") == 1
    assert main(["--qrels", "q", "own.trec", "-m", "MRR@10", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
