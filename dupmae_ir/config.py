"""One frozen dataclass is the flags, the recipe and the record.

A command declares its settings once, with :func:`option`; :func:`add_config` turns them into grouped
flags, :func:`from_namespace` and :func:`from_toml` read them back, and :func:`to_dict` is what goes
into ``meta.json`` beside every artifact.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field
from pathlib import Path
from typing import Any, TypeVar

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.registry import suggest

T = TypeVar("T")


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    group: str = "options",
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
    flag: str | None = None,
    positional: bool = False,
) -> Any:
    """A dataclass field that is also a flag. Without a default it is required.

    ``help`` says the meaning and the unit; the default is appended by the help formatter.
    ``flag`` overrides the name derived from the field (``batch_tokens`` -> ``--batch-tokens``).
    """
    metadata = {
        "help": help,
        "group": group,
        "choices": choices,
        "metavar": metavar,
        "flag": flag,
        "positional": positional,
    }
    return field(default=default, metadata=metadata)


def add_config(parser: argparse.ArgumentParser, config: type) -> None:
    """Add one flag per :func:`option` of ``config``, in its groups and in field order, inherited ones last."""
    hints = typing.get_type_hints(config)
    groups: dict[str, Any] = {}
    own = inspect.get_annotations(config)
    for f in sorted(dataclasses.fields(config), key=lambda f: f.name not in own):
        title = f.metadata.get("group", "options")
        group = groups.setdefault(title, parser.add_argument_group(title)) if title not in groups else groups[title]
        _add_flag(group, f, hints[f.name])


def from_namespace(config: type[T], namespace: argparse.Namespace) -> T:
    """Build ``config`` from parsed flags; flags that are not its fields are ignored."""
    names = {f.name for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in vars(namespace).items() if k in names}
    return config(**values)


def parse(parser: argparse.ArgumentParser, config: type[T], argv: list[str] | None = None) -> T:
    """Add the flags of ``config`` and ``--recipe FILE`` to ``parser`` and read ``argv``.

    A flag on the command line wins over the recipe, the recipe over the default; a required setting may stand in
    either. Raises :class:`InputError` for a recipe that cannot be used.
    """
    add_config(parser, config)
    parser.add_argument("--recipe", metavar="FILE", help="a TOML file of these settings; flags given here win over it")
    probe = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    probe.add_argument("--recipe", nargs="?")
    recipe = probe.parse_known_args(argv)[0].recipe
    if recipe:
        values = recipe_values(config, recipe)
        parser.set_defaults(**values)
        for action in parser._actions:
            action.required = action.required and action.dest not in values
    return from_namespace(config, parser.parse_args(argv))


def recipe_values(config: type, path: str | Path) -> dict[str, Any]:
    """The settings that a recipe names, checked against ``config``; it need not name all that are required."""
    return _checked_values(config, read_toml(path), str(path))


def from_toml(config: type[T], path: str | Path, **overrides: Any) -> T:
    """Read a recipe. Unknown keys and wrong types are refused with the file's name."""
    return from_mapping(config, {**read_toml(path), **overrides}, source=str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file, or an :class:`InputError` in one line that says what is wrong with it."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such recipe") from None
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: not valid TOML: {e}") from None


def from_mapping(config: type[T], data: Mapping[str, Any], source: str = "recipe") -> T:
    """Build ``config`` from plain values, checking names and types. ``source`` is named in errors."""
    values = _checked_values(config, data, source)
    required = {f.name for f in dataclasses.fields(config) if f.default is MISSING and f.default_factory is MISSING}  # type: ignore[arg-type]
    if missing := sorted(required - set(values)):
        raise InputError(f"{source}: missing {', '.join(missing)}")
    return config(**values)


def _checked_values(config: type, data: Mapping[str, Any], source: str) -> dict[str, Any]:
    hints = typing.get_type_hints(config)
    known = {f.name: f for f in dataclasses.fields(config)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in known:
            raise InputError(f"{source}: no setting named {key!r}.{suggest(name, known)}")
        values[name] = _checked(value, hints[name], f"{source}: {key}")
        choices = known[name].metadata.get("choices")
        if choices and value is not None and value not in choices:
            raise InputError(f"{source}: {key} is {value!r}; use one of {', '.join(choices)}")
    return values


def to_dict(config: Any) -> dict[str, Any]:
    """Plain JSON-able values of a config."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(config).items()}


def flags(config: Any) -> list[str]:
    """The words of a command line that give ``config``: what differs from the defaults, required ones first."""
    required: list[str] = []
    optional: list[str] = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.default is not MISSING and value == f.default:
            continue
        words = required if f.default is MISSING else optional
        if not f.metadata.get("positional"):
            flag = f.metadata.get("flag") or "--" + f.name.replace("_", "-")
            words.append(flag.replace("--", "--no-", 1) if value is False else flag)
        if not isinstance(value, bool):
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
    return required + optional


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """``--top-k was 32, is 64; ...`` over what two settings do not share; empty when they agree."""
    names = [*before, *(n for n in now if n not in before)]
    changed = [n for n in names if before.get(n) != now.get(n)]
    return "; ".join(f"--{n.replace('_', '-')} was {_shown(before.get(n))}, is {_shown(now.get(n))}" for n in changed)


def _shown(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        return f"{value[:12]}..."  # a digest
    return "not given" if value is None else json.dumps(value) if isinstance(value, str | list) else str(value)


def check_ranges(config: Any, above_zero: Iterable[str] = (), zero_or_more: Iterable[str] = ()) -> None:
    """Refuse settings that are too small, by the flag's name; NaN is refused too."""
    for bound, names in (("above 0", above_zero), ("0 or more", zero_or_more)):
        for name in names:
            value = getattr(config, name)
            if not (value > 0 if bound == "above 0" else value >= 0):
                raise UsageError(f"--{name.replace('_', '-')} must be {bound}, got {value:g}")


def _add_flag(group: Any, f: dataclasses.Field[Any], hint: Any) -> None:
    kind, _, many = _unwrap(hint)
    meta = f.metadata
    required = f.default is MISSING
    settings: dict[str, Any] = {"help": meta.get("help", "")}
    if meta.get("choices"):
        settings["choices"] = meta["choices"]
    if meta.get("positional"):
        nargs = "+" if many and required else "*" if many else None if required else "?"
        if nargs:
            settings["nargs"] = nargs
        if not required:
            settings["default"] = f.default
        group.add_argument(f.name, type=kind, metavar=meta.get("metavar"), **settings)
        return
    flag = meta.get("flag") or "--" + f.name.replace("_", "-")
    if kind is bool:
        # None: neither said, somebody else decides.
        action = "store_true" if f.default is False else argparse.BooleanOptionalAction
        group.add_argument(flag, dest=f.name, action=action, default=f.default, help=settings["help"])
        return
    if not meta.get("choices"):
        settings["metavar"] = meta.get("metavar") or {int: "N", float: "X"}.get(kind, f.name.upper())
    if many:
        settings["nargs"] = "+"
        settings["action"] = _Gather
    group.add_argument(
        flag, dest=f.name, type=kind, required=required, default=None if required else f.default, **settings
    )


class _Gather(argparse.Action):
    """A list flag given twice adds to the first; the first replaces the default."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:  # noqa: ARG002
        gathered = getattr(namespace, self.dest)
        # Defaults are tuples, so a list is what an earlier use of the flag has left.
        setattr(namespace, self.dest, [*(gathered if isinstance(gathered, list) else []), *values])


def _unwrap(hint: Any) -> tuple[Any, bool, bool]:
    """``str | None`` -> (str, True, False); ``tuple[int, ...]`` -> (int, False, True)."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        kind, _, many = _unwrap(inner[0])
        return kind, True, many
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], False, True
    return hint, False, False


def _checked(value: Any, hint: Any, where: str) -> Any:
    kind, optional, many = _unwrap(hint)
    if value is None and optional:
        return None
    if many:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where} wants a list, got {value!r}")
        return tuple(_checked(v, kind, where) for v in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{where} wants {kind.__name__}, got {value!r}")
    return value
