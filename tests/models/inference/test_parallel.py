"""Forward passes side by side: order, errors, and torch's number of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from dupmae_ir.models.inference.encoder import TextEncoder, side_by_side


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def new_thread_has() -> int:
    """The number that torch gives a thread that has not used it."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_results_come_in_order_from_threads_that_share_nothing(two_threads: None) -> None:
    def work(number: int) -> tuple[int, int, str]:
        time.sleep(0.02 * (number % 3))
        return number, torch.get_num_threads(), threading.current_thread().name

    found = list(side_by_side(work, range(12), 2))
    assert [number for number, _, _ in found] == list(range(12))
    assert {threads for _, threads, _ in found} == {1}
    assert len({name for _, _, name in found}) == 2
    assert (torch.get_num_threads(), new_thread_has()) == (2, 2)


def test_few_results_wait(two_threads: None) -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return number

    results = side_by_side(work, range(100), 2)
    assert next(results) == 0
    time.sleep(0.2)
    assert len(begun) <= 5
    results.close()
    assert (torch.get_num_threads(), new_thread_has()) == (2, 2)


def test_an_error_ends_it_and_leaves_no_thread(two_threads: None) -> None:
    def work(number: int) -> int:
        if number == 3:
            raise RuntimeError("three")
        return number

    found = []
    with pytest.raises(RuntimeError, match="three"):
        found.extend(side_by_side(work, range(100), 2))
    assert (torch.get_num_threads(), new_thread_has()) == (2, 2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forward")]


@pytest.mark.parametrize("parts", [("cls", "ot"), ("cls",)])
@pytest.mark.parametrize("tokens", [64, 1 << 16])  # several batches, and one
def test_the_number_of_threads_changes_no_bit(
    two_threads: None, parts: tuple[str, ...], tokens: int
) -> None:
    encoder = TextEncoder.load(None, parts=parts)
    encoder._batch_tokens = tokens
    texts = [f"a text of {n} words " + "word " * (n % 17) for n in range(40)]
    both = encoder.encode_documents(texts)
    torch.set_num_threads(1)
    one = encoder.encode_documents(texts)
    np.testing.assert_array_equal(both.cls, one.cls)
    if one.ot is not None:
        assert (both.ot != one.ot).nnz == 0
