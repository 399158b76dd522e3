"""Tests of the number of threads of numpy's BLAS."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dupmae_ir import device
from dupmae_ir.device import blas_threads

threadpoolctl = pytest.importorskip("threadpoolctl")
assert np.dot([1.0], [1.0]) == 1  # numpy's BLAS is loaded


def threads() -> set[int]:
    """Of the BLAS libraries with one number for the process; others are loaded by torch or faiss."""
    found = [
        library for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"
    ]
    return {
        library["num_threads"] for library in found if library.get("threading_layer") != "openmp"
    }


def test_the_limit_ends_with_its_context_also_after_an_error() -> None:
    with threadpoolctl.threadpool_limits(2, "blas"):
        before = threads()
        with blas_threads(1):
            assert threads() == {1}
        assert threads() == before
        with pytest.raises(KeyError), blas_threads(1):
            raise KeyError
        assert threads() == before


@pytest.mark.parametrize("limits", [(1, 2), (2, 1), (1, 1)])
def test_the_smallest_limit_holds_and_the_last_to_leave_restores(limits: tuple[int, int]) -> None:
    # The first to enter leaves first, as concurrent queries do and nested contexts never.
    first_inside = threading.Event()
    first_may_leave = threading.Event()

    def first() -> None:
        with blas_threads(limits[0]):
            first_inside.set()
            assert first_may_leave.wait(30)

    with threadpoolctl.threadpool_limits(3, "blas"):
        before = threads()
        thread = threading.Thread(target=first)
        thread.start()
        try:
            assert first_inside.wait(30)
            assert threads() == {limits[0]}
            with blas_threads(limits[1]):
                assert threads() == {min(limits)}
                first_may_leave.set()
                thread.join()
                assert threads() == {limits[1]}
        finally:
            first_may_leave.set()
            thread.join()
        assert threads() == before


def test_without_threadpoolctl_nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_libraries", lambda: device._Libraries((), None))
    with threadpoolctl.threadpool_limits(2, "blas"), blas_threads(1):
        assert threads() == {2}
