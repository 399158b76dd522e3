"""Text that is not only text: escape sequences, overrides, surrogates, formulas, and a closed standard output."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dupmae_ir.console import visible
from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import InputError
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.eval.reports.html import as_html
from dupmae_ir.eval.reports.text import FORMATS, EvalReport, per_query_tsv
from dupmae_ir.index.__main__ import main as index_command
from dupmae_ir.io.topics import read_topics
from dupmae_ir.search.__main__ import main as search
from dupmae_ir.types import Hit

ROOT = Path(__file__).parents[1]
ESC = "\x1b[31m"
OSC = "\x1b]52;c;aGk=\x07"
C1 = "\x9b2J"
OVERRIDE = "\u202e"
SEPARATOR = "\u2028"
HOSTILE = f"red{ESC} paste{OSC} clear{C1} turn{OVERRIDE} line{SEPARATOR} end"
CONTROLS = set("\x1b\x07\x9b\u202e\u2028")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of two documents whose titles and texts are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [{"_id": f"d{n}", "title": HOSTILE, "text": f"cat {HOSTILE} dog {n}"} for n in range(2)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = [
        "--model",
        "testing:hashing",
        "--corpus",
        str(folder / "corpus.jsonl"),
        "--index",
        str(folder / "index"),
    ]
    assert encode([*flags, "--scale", "50", "--quiet"]) == 0
    return folder / "index"


def query(index: Path, *more: str) -> list[str]:
    return ["--index", str(index), "--corpus", str(index.parent / "corpus.jsonl"), "--query", *more]


def test_visible_replaces_controls_and_nothing_else() -> None:
    assert visible("\x1b]0;x\x07\x85\x9b\x7f\u202e\u2066\u2028\ud800\r") == (
        "\\u001b]0;x\\u0007\\u0085\\u009b\\u007f\\u202e\\u2066\\u2028\\ud800\\r"
    )
    kept = 'naïve 日本語 👩‍👩‍👧 \u200f\u05d0 a\tb\nc \\ "'
    assert visible(kept) == kept
    assert visible("a\tb\nc", breaks=True) == "a\\tb\\nc"


def test_visible_keeps_the_value_of_json() -> None:
    text = json.dumps({"title": HOSTILE}, ensure_ascii=False)
    assert not CONTROLS & set(visible(text))
    assert json.loads(visible(text)) == {"title": HOSTILE}


@pytest.mark.jvm
@pytest.mark.parametrize("more", [(), ("--json",), ("--explain", "d0")])
def test_hits_of_a_query_are_printed_without_control_characters(
    index: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    assert search(query(index, f"cat {HOSTILE}", *more)) == 0
    printed, errors = capsys.readouterr()
    assert "paste" in printed
    assert not CONTROLS & set(printed + errors)


def test_errors_are_printed_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert search(["--index", f"nowhere{ESC}", "--query", "x"]) == 2
    assert "\\u001b[31m" in (errors := capsys.readouterr().err)
    assert "\x1b" not in errors
    assert errors.count("\n") == 1


def report(name: str, qid: str = "q1") -> EvalReport:
    evaluation = evaluate({qid: {"d": 1}}, {qid: [Hit("d", 1.0)]}, ["nDCG@10"])
    return EvalReport(f"qrels{ESC}", {name: evaluation}, {name: "run.trec"})


@pytest.mark.parametrize("kind", ["markdown", "latex", "csv"])
def test_tables_have_no_control_characters(kind: str) -> None:
    shown = FORMATS[kind](report(f"run{HOSTILE}\nsecond"))
    assert not CONTROLS & set(shown)
    assert "\nsecond" not in shown, "a name must not end a line, a comment or a row"


def test_a_page_has_no_control_characters() -> None:
    assert not CONTROLS & set(as_html(report(f"run{HOSTILE}")))


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3+cmd", "@SUM(A1)", "\t=1", "\r=1"]
)
def test_a_csv_cell_is_no_formula(name: str) -> None:
    ((_, *_), (cell, *_)) = csv.reader(io.StringIO(FORMATS["csv"](report(name))))
    assert cell == "'" + visible(name, breaks=True)
    assert per_query_tsv(report(name)).splitlines()[1].lstrip('"').startswith("'")


@pytest.mark.parametrize("qid", ["-5", "+12", "q-1", "3=4"])
def test_ids_that_are_no_formula_stay(qid: str) -> None:
    assert per_query_tsv(report("run", qid)).splitlines()[1].split("\t")[1] == qid


def test_half_a_surrogate_pair_in_a_topic_is_replaced_and_in_an_id_refused(tmp_path: Path) -> None:
    topics = tmp_path / "queries.jsonl"
    topics.write_text('{"_id": "q1", "text": "caf\\ud800 x"}\n')
    assert read_topics(topics)[0].text == "caf? x"
    for bad in ("\\ud800", "\\u001b[2J", "\\u202eq", "\\u0000"):
        topics.write_text(f'{{"_id": "q{bad}", "text": "x"}}\n')
        with pytest.raises(InputError, match=r":1: the topic id .* control character"):
            read_topics(topics)


def run(command: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A shell command with ``$PYTHON``; the words are its ``$1``, ``$2``."""
    return subprocess.run(
        ["bash", "-c", command, "bash", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_bytes_that_are_not_utf8_are_one_line() -> None:
    ended = run("$PYTHON -m dupmae_ir.search --index I --query $'caf\\xe9'")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "dupmae-ir search: the argument 'caf\\udce9' is not UTF-8 text (see dupmae-ir search --help)\n"
    )


@pytest.mark.jvm
def test_a_closed_standard_output_is_one_line(index: Path) -> None:
    ended = run('$PYTHON -m dupmae_ir.search --index "$1" --query cat --quiet >&-', index)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert (
        ended.stderr
        == "dupmae-ir search: standard output is closed, so there is nowhere to print the result\n"
    )


def test_no_file_is_opened_as_a_closed_standard_output(tmp_path: Path) -> None:
    """A library that prints would write into the file that has number 1."""
    code = (
        "import os; from dupmae_ir.console import guarded\n"
        f"guarded(lambda: print(open({str(tmp_path / 'f')!r}, 'w').fileno(), file=open({str(tmp_path / 'n')!r}, 'w')))"
    )
    assert run('$PYTHON -c "$1" <&- >&- 2>&-', code).returncode == 0
    assert int((tmp_path / "n").read_text()) > 2


@pytest.mark.jvm
def test_a_killed_search_is_swept_by_the_next(index: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("q1\tcat dog\n")
    left = [tmp_path / f".{name}.{2**22 - 3}.tmp" for name in ("r.trec", "r.jsonl")]
    for path in left:
        path.write_text("half a run")
    flags = ["--output", str(tmp_path / "r.trec"), "--report", str(tmp_path / "r.jsonl"), "--quiet"]
    assert search(["--index", str(index), "--topics", str(tmp_path / "queries.tsv"), *flags]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["queries.tsv", "r.jsonl", "r.trec"]


def test_a_folder_name_with_a_line_break_stays_on_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"_id": "a", "text": "cat"}\n')
    (tmp_path / "b.jsonl").write_text('{"_id": "b", "text": "dog"}\n')
    folder = str(tmp_path / "two\nlines")
    assert (
        encode(
            ["--model", "testing:hashing", "--corpus", str(tmp_path / "a.jsonl"), "--index", folder]
        )
        == 0
    )
    capsys.readouterr()
    assert index_command(["add", "--corpus", str(tmp_path / "b.jsonl"), "--index", folder]) == 0
    err = capsys.readouterr().err.strip().splitlines()
    assert "two\\nlines: 1 added" in err[-1]
    assert not any(line.startswith("lines") for line in err)


def test_what_cannot_be_used_is_one_line(
    index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A path that is not UTF-8, and a model whose weights are code."""
    torch = pytest.importorskip("torch")
    torch.save({"weight": argparse.Namespace(lr=1)}, tmp_path / "pytorch_model.bin")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "dupmae_ir" / "default_model" / name, tmp_path)
    for flags, message in (
        (["--index", os.fsdecode(b"/\xff\xfe")], "is not UTF-8 text"),
        (
            ["--index", str(index), "--model", str(tmp_path)],
            "could run code; save only its tensors",
        ),
    ):
        with contextlib.suppress(SystemExit):
            assert search([*flags, "--query", "cat"]) == 2
        err = capfd.readouterr().err
        assert message in err
        assert err.count("\n") == 1
        assert "weights_only" not in err
