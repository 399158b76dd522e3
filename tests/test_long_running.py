"""The limit of open files of processes that run for long."""

from __future__ import annotations

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource")

RAISED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, {most}))
from dupmae_ir.long_running import allow_open_files
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("most", [100, 900])
def test_the_limit_is_raised_as_far_as_it_may(most: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISED.format(most=most)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(most), str(most)]
