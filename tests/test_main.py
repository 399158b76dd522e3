"""The command line: dupmae-ir with its commands, and three folders in a checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dupmae_ir.__main__ import VERBS, main

ROOT = Path(__file__).resolve().parents[1]


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    shown = re.findall(r"^  (\S+)  +\S", capsys.readouterr().out, re.M)
    assert shown == list(VERBS)
    assert main([]) == 0


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_command_has_a_help_page(verb, capsys):
    try:
        status = main([verb, "--help"])
    except SystemExit as done:
        status = int(done.code or 0)
    assert status == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: dupmae-ir")
    assert "--quiet" in out


def test_a_mistyped_command_gets_a_suggestion(capsys):
    assert main(["encod"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Did you mean 'encode'?" in err


def test_ctrl_c_while_a_command_is_imported_is_one_line(capsys, monkeypatch):
    def interrupt(_name):
        raise KeyboardInterrupt

    monkeypatch.setattr("dupmae_ir.__main__.importlib.import_module", interrupt)
    assert main(["search"]) == 130
    assert capsys.readouterr().err == "\ndupmae-ir search: interrupted\n"


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"dupmae-ir \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_nothing_heavy_is_imported_for_a_help_page():
    code = (
        "import sys, dupmae_ir.__main__ as m\n"
        "for verb in ('encode', 'search', 'serve', 'index', 'finetune'):\n"
        "    try: m.main([verb, '--help'])\n"
        "    except SystemExit: pass\n"
        "heavy = {'numpy', 'torch', 'transformers', 'faiss', 'jnius', 'pyserini', 'scipy', 'pandas'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", ["encode", "search", "eval"])
def test_front_door_folders_work_from_anywhere(verb, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(ROOT / verb), "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert f"usage: dupmae-ir {verb}" in done.stdout


def test_start_up_is_instant():
    fastest = min(_seconds() for _ in range(3))
    bare = min(_seconds("-c", "pass") for _ in range(3))
    # Without the interpreter's own start; half a second allows for a busy machine.
    assert fastest - bare < 0.5


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *(arguments or ("-m", "dupmae_ir"))],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return time.perf_counter() - start


def test_an_ending_command_collects_nothing():
    code = (
        "import atexit, gc; atexit.register(lambda: print('frozen:', gc.get_freeze_count() > 0))\n"
        "from dupmae_ir.__main__ import main; main(['models', 'list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.endswith("frozen: True\n")


def test_every_command_is_described():
    assert all(line and not line.endswith(".") for line in VERBS.values())
