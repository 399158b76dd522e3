"""One thread for every test, as the killed processes have: sums in another order differ in their last digit."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
