"""Runs every check in its own process, several at a time.

A check that crashes its process (a JVM, two OpenMP runtimes) is reported like any other problem, and the other checks
still run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dupmae_ir.console import one_line
from dupmae_ir.doctor.checks import CHECKS, FIXES, OPTIONAL, Finding
from dupmae_ir.doctor.config import DoctorConfig
from dupmae_ir.errors import DupmaeError

TIMEOUT = 180
"""Seconds after which a check counts as hanging."""

STARTED_FIRST = ("python", "packages", "java", "pyserini")
"""The checks that take a tenth of a second, then the one that takes as long as all others together; it would run alone
at the end if it were started last."""

_MARK = "finding: "


def run(config: DoctorConfig) -> dict[str, Any]:
    """Run every check; unless ``config.json``, print each finding as soon as it is known.

    Returns ``ok`` (everything essential works) and ``findings``. A failing check never raises.
    """
    findings = []
    for finding in examine_all():
        findings.append(finding)
        if not config.json and not (config.quiet and finding.ok):
            sys.stdout.write(lines(finding) + "\n")
            sys.stdout.flush()
    return {"ok": healthy(findings), "findings": [asdict(finding) for finding in findings]}


def examine_all() -> Iterator[Finding]:
    """The findings of all checks in order, each as soon as it is known."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        started = {name: pool.submit(_examine, name) for name in _start_order(CHECKS)}
        for name in CHECKS:
            yield started[name].result()


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether everything essential works."""
    return all(finding.ok or not finding.essential for finding in findings)


def lines(finding: Finding) -> str:
    """One finding as text."""
    text = f"{'OK     ' if finding.ok else 'PROBLEM'}  {finding.name.ljust(11)}{finding.detail}"
    for label, more in (("fix", finding.fix), ("note", finding.note)):
        text += f"\n{'':20}{label}: {more}" if more else ""
    return text


def _start_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: STARTED_FIRST.index(name) if name in STARTED_FIRST else len(STARTED_FIRST))


def _examine(name: str) -> Finding:
    """Run one check in a child process and return its finding; a child that fails otherwise is a problem."""
    code = f"from dupmae_ir.doctor import run; run._child({name!r})"
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, env=env)
    except subprocess.TimeoutExpired:
        return _problem(name, f"no answer within {TIMEOUT} s")
    marked = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if marked:
        return Finding(**json.loads(marked[-1].removeprefix(_MARK)))
    output = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return _problem(name, f"crashed ({how})" + (f": {output[-1].strip()[:200]}" if output else ""))


def _child(name: str) -> None:
    """In the child process: print the finding on a line of its own."""
    try:
        finding = CHECKS[name]()
    except DupmaeError as e:
        finding = _problem(name, str(e), getattr(e, "fix", ""))
    except ImportError as e:
        finding = _problem(name, f"cannot be imported: {e}")
    except Exception as e:
        finding = _problem(name, f"{type(e).__name__}: {one_line(e, 200)}")
    print(_MARK + json.dumps(asdict(finding)), flush=True)  # noqa: T201 (to the parent)


def _problem(name: str, detail: str, fix: str = "") -> Finding:
    # Some messages end with the command that fixes the problem.
    message, found, command = detail.partition("; run: ")
    fix = fix or (command if found else FIXES.get(name, ""))
    return Finding(name, False, message, fix, essential=name not in OPTIONAL)
