"""When the compiled loops are loaded."""

from __future__ import annotations

import sys

import pytest

from dupmae_ir.index.postings import compiling
from dupmae_ir.index.postings.compiling import MUCH, SMALL, pays


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    """Nothing loaded and nothing done yet, with numba installed."""
    monkeypatch.delitem(sys.modules, "dupmae_ir.index.postings.kernels", raising=False)
    monkeypatch.setattr(compiling, "_left_to_numpy", 0)
    monkeypatch.setattr(compiling, "_installed", lambda: True)


def test_large_work_pays_at_once_and_small_work_does_not():
    assert pays(SMALL + 1)
    assert not pays(SMALL)


def test_small_work_adds_up_until_loading_would_have_paid():
    answers = [pays(SMALL) for _ in range(MUCH // SMALL + 3)]
    first = answers.index(True)
    assert first * SMALL > MUCH
    assert not any(answers[:first])
    assert all(answers[first:])


def test_work_of_any_size_pays_once_the_loops_are_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "dupmae_ir.index.postings.kernels", object())
    assert pays(1)


def test_nothing_pays_without_numba(monkeypatch):
    monkeypatch.setattr(compiling, "_installed", lambda: False)
    assert not any(pays(SMALL + 1) for _ in range(MUCH // SMALL + 3))
