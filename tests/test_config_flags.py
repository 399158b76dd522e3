"""A config converts to flags and back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dupmae_ir.config import flags, from_mapping, option, parse, to_dict
from dupmae_ir.console import Parser
from dupmae_ir.errors import InputError, UsageError


@dataclass(frozen=True)
class Sample:
    path: str = option(help="a path")
    many: tuple[int, ...] = option((), "numbers")
    rate: float = option(0.5, "a rate")
    on: bool = option(True, "on by default")
    off: bool = option(False, "off by default")
    name: str | None = option(None, "a name", choices=("a", "b"))


@pytest.mark.parametrize(
    "sample",
    [
        Sample("x"),
        Sample("x y", (1, 2), 0.25, False, True, "b"),
        Sample("-", on=False),
        Sample("x", rate=1e-5),
    ],
)
def test_flags_round_trip(sample):
    assert parse(Parser("test", "a test"), Sample, flags(sample)) == sample
    assert from_mapping(Sample, to_dict(sample)) == sample


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"pth": "x"}, "Did you mean 'path'?"),
        ({"path": 3}, "expected str"),
        ({"rate": 1.0}, "missing path"),
        ({"path": "x", "many": 3}, "expected a list"),
        ({"path": "x", "on": 1}, "expected bool"),
        ({"path": "x", "name": "c"}, "use one of a, b"),
    ],
)
def test_an_invalid_recipe_is_a_one_line_error(data, message):
    with pytest.raises((InputError, UsageError)) as e:
        from_mapping(Sample, data, "r.toml")
    assert message in str(e.value)
    assert "r.toml" in str(e.value)
