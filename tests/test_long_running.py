"""Open files and collections of processes that run for long."""

from __future__ import annotations

import gc
import subprocess
import sys
import types

import pytest

from dupmae_ir.long_running import modules_left_out_of_collections

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


def test_modules_are_left_out_of_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are imported later; other objects are not."""
    with modules_left_out_of_collections():
        gc.collect()
        frozen = gc.get_freeze_count()
        assert frozen > 10 * len(gc.get_objects())

        some = [[n] for n in range(1000)]
        gc.collect()
        assert gc.get_freeze_count() <= frozen

        monkeypatch.setitem(sys.modules, "imported_later", types.ModuleType("imported_later"))
        gc.collect()
        assert gc.get_freeze_count() > frozen + len(some) // 2
    assert gc.get_freeze_count() == 0
