"""Without fcntl and resource, as on Windows: locks by filelock, and every command that needs a lock works.

The modules are hidden from this package only; filelock itself locks with the system's own calls.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = "import sys, filelock, torch\nsys.modules['fcntl'] = sys.modules['resource'] = None\n"
HOLDER = (
    HIDDEN
    + """
import time
from dupmae_ir.io import locks
assert locks.fcntl is None
with locks.exclusive(sys.argv[1], "busy"):
    print("held", flush=True)
    time.sleep(60)
"""
)
SECOND = (
    HIDDEN
    + """
import os
from dupmae_ir.errors import UsageError
from dupmae_ir.io.locks import exclusive, remove_stale
lock, holder = sys.argv[1], int(sys.argv[2])
try:
    with exclusive(lock, "writing I"):
        raise SystemExit("two hold the lock")
except UsageError as e:
    print(e)
remove_stale(lock)
print(os.path.exists(lock))
os.kill(holder, 9)
with exclusive(lock, "writing I", wait=True):
    print("mine")
"""
)
COMMANDS = (
    HIDDEN
    + """
from dupmae_ir.__main__ import main
from dupmae_ir.index.format import segment
assert segment.fcntl is None
for words in sys.argv[1:]:
    status = main(words.split())
    assert status == 0, (words, status)
"""
)


def test_one_holder_who_is_released_by_a_kill(tmp_path):
    lock = str(tmp_path / "lock")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        words = [sys.executable, "-c", SECOND, lock, str(holder.pid)]
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        first, *rest = done.stdout.splitlines()
        assert first == "another process is writing I; wait until it is done, or stop it"
        assert rest == ["True", "mine"]
        assert holder.wait(60) == -signal.SIGKILL
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.nightly
def test_an_index_is_made_changed_and_searched(tmp_path):
    for name, text in (("one", "the cat sat"), ("two", "the dog runs")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"_id": name, "text": text}) + "\n")
    index = f"--index {tmp_path / 'i'}"
    commands = [
        f"encode --corpus {tmp_path / 'one.jsonl'} {index} --quiet",
        f"index add {index} --corpus {tmp_path / 'two.jsonl'} --quiet",
        f"index compact {tmp_path / 'i'} --quiet",
        f"search {index} --query dog --json --quiet",
    ]
    words = [sys.executable, "-c", COMMANDS, *commands]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hits"][0]["docid"] == "two"
