"""The campaign as a test: a sample of the damage, none of which may give other answers silently."""

from __future__ import annotations

import pytest

from .damage import run_damage

pytestmark = [pytest.mark.slow, pytest.mark.jvm]


def test_no_damage_gives_other_answers(tmp_path):
    results = run_damage(tmp_path, seconds=120, most=200)
    assert len(results) > 100
    assert [r for r in results if r.verdict not in ("refused at open", "refused on use", "unchanged")] == []
