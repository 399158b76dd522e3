"""Models load correctly from several threads at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# transformers is imported by the first of the threads, and the short switch interval makes races likely.
CODE = """
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

sys.setswitchinterval(1e-5)
start = threading.Barrier(8)

def load(number):
    start.wait()
    from dupmae_ir.models import load_encoder
    encoder = load_encoder(sys.argv[1], document_length=16)
    return encoder.encode_documents(["the quick brown fox", "cat"])

with ThreadPoolExecutor(8) as pool:
    first, *others = pool.map(load, range(8))
assert first.ot.nnz > 0
for other in others:
    assert (other.cls == first.cls).all()
    assert (other.ot != first.ot).nnz == 0

import transformers
assert transformers.utils.logging.is_progress_bar_enabled()
assert transformers.utils.logging.get_verbosity() == transformers.utils.logging.WARNING
"""


@pytest.mark.nightly
def test_eight_threads_load_the_same_model(tiny_folder: Path) -> None:
    command = [sys.executable, "-c", CODE, str(tiny_folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Loading weights" not in done.stderr
