"""When the compiled loops are loaded."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dupmae_ir import device
from dupmae_ir.device import LITTLE_WORK, MUCH_WORK, pays

LOAD_NUMBA = device._load_numba


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    """Nothing loaded and nothing done yet, with numba installed."""
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    monkeypatch.setattr(device, "_left_to_numpy", 0)
    monkeypatch.setattr(device, "_load_numba", lambda: True)


def test_large_work_pays_at_once_and_small_work_does_not():
    assert pays(LITTLE_WORK + 1)
    assert not pays(LITTLE_WORK)


def test_small_work_adds_up_until_loading_would_have_paid():
    answers = [pays(LITTLE_WORK) for _ in range(MUCH_WORK // LITTLE_WORK + 3)]
    first = answers.index(True)
    assert first * LITTLE_WORK > MUCH_WORK
    assert not any(answers[:first])
    assert all(answers[first:])


def test_work_of_any_size_pays_once_the_loops_are_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", object())
    assert pays(1)


def test_nothing_pays_without_numba(monkeypatch):
    monkeypatch.setattr(device, "_load_numba", lambda: False)
    assert not any(pays(LITTLE_WORK + 1) for _ in range(MUCH_WORK // LITTLE_WORK + 3))


def test_numba_is_imported_before_any_loop_and_by_one_thread_at_a_time(monkeypatch):
    """Two threads that imported parts of it at once ended with a deadlock error, and then no search worked."""
    imports = []

    def import_slowly(name):
        imports.append(name)
        count = len(imports)
        time.sleep(0.02)
        assert len(imports) == count, "another thread imports it at the same time"

    monkeypatch.setattr(device, "_load_numba", LOAD_NUMBA.__wrapped__)
    monkeypatch.setattr(device.importlib, "import_module", import_slowly)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(pays, [LITTLE_WORK + 1] * 4))
    assert imports == ["numba"] * 4
