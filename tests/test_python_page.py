"""The examples of docs/python.md run in order, and the page documents every public name."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import dupmae_ir

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_public_name_is_on_the_page():
    entries = {line.rsplit(".", 1)[1] for line in PAGE.splitlines() if line.startswith("::: ")}
    assert entries | {"DupmaeError"} == set(dupmae_ir.__all__)
    assert "DupmaeError" in PAGE
    assert len(dupmae_ir.__all__) <= 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


def run_examples(text: str = "") -> None:
    """Run the examples that contain ``text``, in order; without it, those that neither train nor serve."""
    names: dict[str, object] = {}
    for example in EXAMPLES:
        if (
            text in example
            if text
            else "pre_train(" not in example and "serve_indexes(" not in example
        ):
            exec(compile(example, "docs/python.md", "exec"), names)


def test_the_examples_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    run_examples()


@pytest.mark.nightly
def test_the_examples_of_training_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples("pre_train(")


def test_the_example_of_the_service_runs(folder):
    (example,) = (e for e in EXAMPLES if "serve_indexes(" in e)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = example.replace("8123", str(port))
    assert code != example
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            for _ in range(300):
                try:
                    with urllib.request.urlopen(
                        f"http://127.0.0.1:{port}/health", timeout=5
                    ) as answer:
                        assert answer.status == 200
                    break
                except OSError:
                    assert server.poll() is None, server.stderr.read()
                    time.sleep(0.1)
            else:
                pytest.fail("the service did not answer within 30 seconds")
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(30) in (0, 130)
