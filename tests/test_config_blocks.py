"""Blocks of settings that several configs share, and the rules between their fields."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dupmae_ir.config import Config, option, parse, subset
from dupmae_ir.console import Parser
from dupmae_ir.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Block(Config):
    depth: int = option(0, "a depth", at_least=0, only_with="!fast and !rough")
    kind: str = option("flat", "a kind", choices=("flat", "graph"))


@dataclass(frozen=True, kw_only=True)
class Command(Block):
    fast: bool = option(False, "fast")
    rough: bool = option(False, "rough")


def test_a_rule_ignores_fields_that_the_config_lacks():
    assert Block(depth=3).depth == 3
    assert Command(depth=3).depth == 3


@pytest.mark.parametrize("name", ["fast", "rough"])
def test_each_term_of_a_conjunction_is_required(name):
    with pytest.raises(UsageError, match="`depth` applies only without `fast` and without `rough`"):
        Command(depth=3, **{name: True})


def test_subset_is_the_block_alone():
    block = subset(Command(depth=3, kind="graph"), Block, depth=4)
    assert (type(block), block) == (Block, Block(depth=4, kind="graph"))


def test_a_near_miss_of_a_choice_gets_a_suggestion():
    with pytest.raises(UsageError, match="Did you mean 'graph'"):
        parse(Parser("test", "a test"), Command, ["--kind", "grph"])
