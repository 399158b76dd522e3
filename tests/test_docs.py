"""The documentation is what the commands say, and what it links to exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words its pages otherwise in other Pythons")
def test_the_command_pages_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "docs/make_cli.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("maker", ["make_performance.py", "make_systems.py"])
def test_the_pages_say_what_was_found(maker):
    command = [sys.executable, ROOT / "docs" / maker, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_benchmark_of_speed_has_its_record():
    """One that saves by the harness has saved."""
    saves = [p for p in (ROOT / "benchmarks").glob("*.py") if "harness" in p.read_text(encoding="utf-8")]
    assert saves
    for path in saves:
        if path.stem not in ("harness", "passages"):
            assert (ROOT / "benchmarks" / "results" / f"{path.stem}.json").is_file(), f"run {path.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_nothing_is_left_to_fill_in(page):
    assert not re.search(r"@[A-Z_]+@|TODO|FIXME", page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_readmes_python_runs(tmp_path, shared_data):
    """On the first documents of a real collection, in the folder that the snippet names."""
    shutil.copytree(shared_data / "cranfield" / "qrels", tmp_path / "scifact" / "qrels")
    lines = (shared_data / "cranfield" / "corpus.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "scifact" / "corpus.jsonl").write_text("".join(lines[:60]))
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S).group(1)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nDCG@10" in done.stdout
