"""Flags override recipes, recipes override defaults; the recipes in the repository are valid."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from dupmae_ir.config import from_mapping, option, parse, read_toml, recipe_values
from dupmae_ir.console import Parser
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.errors import InputError, UsageError

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Config:
    source: str = option(help="input", metavar="PATH")
    names: tuple[str, ...] = option((), "names")
    size: int = option(4, "size")
    weight: float | None = option(None, "weight")
    kind: str = option("a", "kind", choices=("a", "b"))
    fast: bool = option(False, "be fast")
    careful: bool = option(True, "be careful")


def put(folder: Path, text: str) -> str:
    (folder / "r.toml").write_text(text)
    return str(folder / "r.toml")


def read(*argv: str) -> Config:
    return parse(Parser("verb", "purpose"), Config, list(argv))


def test_flags_override_the_recipe_and_the_recipe_overrides_defaults(tmp_path):
    recipe = put(
        tmp_path, 'source = "r"\nsize = 7\nnames = ["x", "y"]\nweight = 2\ncareful = false\n'
    )
    assert read("--recipe", recipe) == Config("r", ("x", "y"), 7, 2.0, careful=False)
    assert read(
        "--recipe", recipe, "--size", "9", "--names", "z", "--source", "s", "--fast", "--careful"
    ) == Config("s", ("z",), 9, 2.0, fast=True)
    assert read("--source", "s") == Config("s")


def test_a_required_setting_may_come_from_flags_or_recipe(tmp_path, capsys):
    recipe = put(tmp_path, "size = 7\n")
    assert read("--recipe", recipe, "--source", "s").size == 7
    with pytest.raises(SystemExit):
        read("--recipe", recipe)
    assert "--source" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"r.toml: missing source"):
        from_mapping(Config, read_toml(recipe), str(recipe))
    assert from_mapping(Config, {**read_toml(recipe), "source": "s"}) == Config("s", size=7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sise = 3", "no setting named 'sise'. Did you mean 'size'?"),
        ('size = "3"', "size: expected int, got '3'"),
        ("size = true", "size: expected int, got True"),
        ('names = "x"', "names: expected a list"),
        ('kind = "c"', "kind is 'c'; use one of a, b"),
        ("size = ", "not valid TOML"),
    ],
)
def test_an_invalid_recipe_is_named_in_the_error(tmp_path, text, message):
    recipe = put(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read("--recipe", recipe, "--source", "s")
    assert message in str(caught.value)
    assert recipe in str(caught.value)


def test_a_missing_recipe(tmp_path):
    for path in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(InputError):
            read("--recipe", str(path), "--source", "s")


@pytest.mark.parametrize("recipe", sorted(ROOT.glob("encode/*.toml")), ids=lambda p: p.name)
def test_every_encoding_recipe_is_valid_and_shows_its_command(recipe):
    config = importlib.import_module("dupmae_ir.encode.run").EncodeConfig
    values = recipe_values(config, recipe)
    assert set(values) <= {f.name for f in fields(config)}
    assert f"--recipe encode/{recipe.name}" in recipe.read_text()


def test_an_unknown_setting_in_python_is_named_with_the_nearest_one():
    with pytest.raises(
        TypeError, match=r"no setting 'document_lenght'. Did you mean 'document_length'\?"
    ):
        EncodeConfig(corpus=("a",), index="i", document_lenght=3)
