"""Stock Pyserini in a process that has imported dupmae_ir: a suitable Java, no OpenAI key, our encoders by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dupmae_ir.encode.pyserini_encoders import DupmaeDocumentEncoder

TEXTS = {"a": "rotate the log files", "b": "send mail"}


def run_python(code: str, *, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "OPENAI_API_KEY", "JVM_PATH")
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env | environment,
        cwd=folder,
        check=False,
    )


def old_java(folder: Path) -> str:
    """A PATH whose first ``java`` is too old for Pyserini."""
    home = folder / "jdk8"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="1.8.0_392"\n')
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    return f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.nightly
def test_stock_imports_work_whatever_java_is_on_path(tmp_path):
    code = (
        "import dupmae_ir, os, sys; assert 'jnius' not in sys.modules\n"
        "from pyserini.search.lucene import LuceneImpactSearcher\n"
        "from pyserini.pyclass import autoclass\n"
        "from pyserini.encode import query_encoder_class_map as known\n"
        "print(autoclass('java.lang.System').getProperty('java.version'), list(known)[:2])\n"
        "assert 'OPENAI_API_KEY' not in os.environ"
    )
    done = run_python(code, folder=tmp_path, PATH=old_java(tmp_path))
    assert done.returncode == 0, done.stderr
    version, _, keys = done.stdout.strip().partition(" ")
    assert int(version.partition(".")[0]) >= 21
    assert keys == "['dupmae-ot:', 'dupmae:']"


def test_other_imports_are_left_alone(tmp_path):
    code = "import dupmae_ir, sys, pyserini, json\nassert 'jnius' not in sys.modules\nprint('fine')"
    assert run_python(code, folder=tmp_path).stdout.strip() == "fine"


@pytest.mark.nightly
@pytest.mark.parametrize("prefix", ["dupmae", "dupmae-ot"])
def test_pyserinis_encode_command_takes_our_models(tmp_path, prefix):
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"id": docid, "text": text}) for docid, text in TEXTS.items()]
    (tmp_path / "corpus" / "c.jsonl").write_text("\n".join(lines) + "\n")
    # The hashing encoder has no scale of its own, so impacts are refused in one line.
    words = [
        "input",
        "--corpus",
        "corpus",
        "--fields",
        "text",
        "output",
        "--embeddings",
        "out",
        "encoder",
    ]
    words += ["--encoder", f"{prefix}:testing:hashing", "--fields", "text", "--device", "cpu"]
    code = f"import sys; from dupmae_ir import pyserini; sys.exit(pyserini.main({['pyserini.encode', *words]!r}))"
    done = run_python(code, folder=tmp_path)
    if prefix == "dupmae-ot":
        assert done.returncode == 2
        assert "impacts need a scale" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    rows = [
        json.loads(line)
        for line in (tmp_path / "out" / "embeddings.jsonl").read_text().splitlines()
    ]
    expected = DupmaeDocumentEncoder("testing:hashing").dense.encode(list(TEXTS.values()))
    assert [row["id"] for row in rows] == list(TEXTS)
    np.testing.assert_allclose([row["vector"] for row in rows], expected, rtol=1e-6)
