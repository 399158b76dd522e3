"""Command settings: one frozen dataclass is the flags, the recipe file and the record.

A command declares each setting once with :func:`option`, including its range and the settings it depends on.
:func:`add_config` turns them into grouped flags, :func:`from_namespace` and :func:`from_mapping` read them back,
:class:`Config` checks them whenever one is built, and :func:`to_dict` is what is recorded beside every output.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import operator
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.registry import suggest
from dupmae_ir.types import SEPARATORS

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
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    only_with: str | tuple[str, ...] = (),
) -> Any:
    """A dataclass field that is also a flag. Without a default it is required.

    Args:
        default: the value where the flag is not given.
        help: meaning and unit; the help formatter appends the default.
        group: heading of the flag on the help page.
        choices: the values allowed.
        metavar: placeholder of the value on the help page.
        flag: overrides the name derived from the field (``batch_tokens`` becomes ``--batch-tokens``).
        positional: an argument without a flag.
        above: exclusive lower bound of the number, or of each number of a list. NaN satisfies no bound.
        at_least: inclusive lower bound.
        at_most: inclusive upper bound.
        below: exclusive upper bound.
        only_with: settings without which this one has no effect: a field that must be set (``"bm25"``), or a value it
            must have (``"fusion=interpolation"``); ``"!bm25"`` for one that must not be set. ``"query and !bm25"`` is a
            conjunction. One of several suffices. Fields that a config lacks are ignored, so a shared block may name
            fields of the configs that inherit it.
    """
    # The parameters above, by name; nothing else is local yet.
    metadata = {name: value for name, value in locals().items() if name != "default"}
    metadata["only_with"] = (only_with,) if isinstance(only_with, str) else only_with
    return field(default=default, metadata=metadata)


input_option = partial(option, group="input")
"""An option that names what a command reads."""
output_option = partial(option, group="output")
compute_option = partial(option, group="compute")
training_option = partial(option, group="training")

_type_hints = cache(typing.get_type_hints)
"""Evaluated once for each class: regressions check 1,300 tables of settings."""


def changed(base: type, name: str, default: Any, **changes: Any) -> Any:
    """The option ``name`` of ``base`` with another default, and other arguments of :func:`option` if given."""
    inherited = next(f for f in dataclasses.fields(base) if f.name == name)
    return option(default, **{**inherited.metadata, **changes})


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A rule over several fields: how many of them may be set. ``purpose`` completes "to say ..." in the error."""

    names: tuple[str, ...]
    purpose: str = ""
    required: bool = True  #: exactly one; otherwise at most one

    def check(self, config: Any) -> None:
        """Raise :class:`UsageError` if ``config`` breaks the rule."""
        set_names = [f"`{name}`" for name in self.names if _is_set(config, name)]
        all_names = ", ".join(f"`{name}`" for name in self.names)
        purpose = f" {self.purpose}" if self.purpose else ""
        if self.required and not set_names:
            raise UsageError(f"give one of {all_names}{purpose}")
        if len(set_names) > 1:
            raise UsageError(
                f"give only one of {all_names}{purpose}; got {' and '.join(set_names)}"
            )


@dataclasses.dataclass(frozen=True)
class Requires:
    """A rule over two fields: ``name``, when set, needs one of ``others``."""

    name: str
    others: tuple[str, ...]

    def check(self, config: Any) -> None:
        """Raise :class:`UsageError` if ``config`` breaks the rule."""
        if not _is_set(config, self.name):
            return
        if not any(_is_set(config, other) for other in self.others):
            others = " or ".join(f"`{other}`" for other in self.others)
            raise UsageError(f"`{self.name}` requires {others}")


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of all settings. Building one checks ranges, choices and dependencies and raises :class:`UsageError`."""

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = ()

    # In __new__, because the __init__ that dataclasses write would raise first, and without a suggestion.
    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Raise :class:`TypeError` for a name that is no setting, with the nearest one."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in settings.keys() - known:
            raise TypeError(f"{cls.__name__} has no setting {name!r}.{suggest(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Config):
    """What a command prints; shared by all commands."""

    quiet: bool = output_option(False, "print no progress and no notes, only results and errors")
    json: bool = output_option(False, "print the result as JSON on standard output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TitleOptions(Config):
    """How a title is joined to its text; shared by all commands that train or search with a retriever."""

    title_separator: str | None = option(
        None,
        "between title and text: a space or [SEP]; without it, the model's own",
        group="model",
        choices=tuple(SEPARATORS),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadOptions(Config):
    """CPU threads; shared by all commands that compute."""

    threads: int = compute_option(0, "CPU threads; 0 = one per available processor", at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeOptions(ThreadOptions):
    """Where and in which precision a model runs; shared by all commands that run one."""

    device: str = compute_option("auto", "auto, cpu, cuda, cuda:N or mps", metavar="NAME")
    dtype: str | None = compute_option(
        None,
        "precision of the model: float32, mixed (products for documents in bfloat16 where the CPU has them; the "
        "default for files that become passages), bfloat16, float16 or auto (the fastest here)",
        choices=("auto", "float32", "mixed", "bfloat16", "float16"),
    )


_POSITIONAL = "_positional"
"""Ends the name under which argparse has a positional argument, which may also be given as a flag."""


def flag_of(f: dataclasses.Field[Any]) -> str:
    """The flag of a field, or its name in capitals if it is a positional argument."""
    if f.metadata.get("positional"):
        return f.name.upper()
    return f.metadata.get("flag") or "--" + f.name.replace("_", "-")


def with_flags(message: str, config: type) -> str:
    """An error message for the command line: names of settings of ``config``, in backticks, become its flags.

    Functions and settings name their parameters (`` `top_k` must be at least 1 ``), as Python callers know them.
    """
    flags = {f.name: flag_of(f) for f in dataclasses.fields(config)}
    return re.sub(r"`([a-z][a-z0-9_]*)`", lambda m: flags.get(m[1], m[0]), message)


def check(config: Any) -> None:
    """Raise :class:`UsageError` for a value out of range, an unknown choice, or a setting without effect."""
    # All ranges before any dependency: a dependency may hang on a value that is wrong itself.
    for f in dataclasses.fields(config):
        _check_range(config, f)
    for f in dataclasses.fields(config):
        # A default is not complained about, although it has no effect either: nobody wrote it.
        if getattr(config, f.name) != f.default and not applies(config, f.name):
            conditions = [" and ".join(map(_as_text, terms)) for terms in _owners(config, f)]
            raise UsageError(f"`{f.name}` applies only {' or '.join(conditions)}")
    for rule in getattr(config, "RULES", ()):
        rule.check(config)


def _check_range(config: Any, f: dataclasses.Field[Any]) -> None:
    setting = getattr(config, f.name)
    values = setting if isinstance(setting, tuple) else (setting,)
    choices = f.metadata.get("choices")
    if choices and setting is not None:
        for value in values:
            if value not in choices:
                # A comma would not separate choices that contain one.
                separator = " | " if any("," in choice for choice in choices) else ", "
                known = separator.join(choices)
                suggestion = suggest(str(value), choices)
                raise UsageError(f"`{f.name}` {value}: choose from {known}.{suggestion}")
    for number in values:
        if not isinstance(number, int | float):
            continue
        for bound in _BOUNDS:
            limit = f.metadata.get(bound.argument)
            # Comparisons are written so that NaN, which satisfies none, is refused by every bound.
            if limit is not None and not bound.holds(number, limit):
                raise UsageError(f"`{f.name}` must be {bound.words} {limit:g}, got {number:g}")


class _Bound(NamedTuple):
    """A bound that :func:`option` takes."""

    argument: str  #: name of the argument
    words: str  #: the relation, as an error says it
    holds: Callable[[float, float], bool]  #: whether a number satisfies the limit


_BOUNDS = (
    _Bound("above", "greater than", operator.gt),
    _Bound("at_least", "at least", operator.ge),
    _Bound("at_most", "at most", operator.le),
    _Bound("below", "less than", operator.lt),
)


def applies(config: Any, name: str) -> bool:
    """Whether the setting ``name`` has an effect beside the others: one of its ``only_with`` conditions holds."""
    setting = next(f for f in dataclasses.fields(config) if f.name == name)
    owners = _owners(config, setting)
    if not owners:
        return True
    for terms in owners:
        if all(_holds(config, term) for term in terms):
            return True
    return False


def _owners(config: Any, f: dataclasses.Field[Any]) -> list[list[str]]:
    """The conditions of ``f``, each a conjunction of terms, without terms about fields that ``config`` lacks."""
    names = {field.name for field in dataclasses.fields(config)}
    owners = []
    for condition in f.metadata.get("only_with") or ():
        terms = []
        for term in condition.split(" and "):
            name, _, _ = term.removeprefix("!").partition("=")
            if name in names:
                terms.append(term)
        if terms:
            owners.append(terms)
    return owners


def _holds(config: Any, owner: str) -> bool:
    if owner.startswith("!"):
        return not _is_set(config, owner[1:])
    name, equals, value = owner.partition("=")
    if equals:
        return str(getattr(config, name)) == value
    return _is_set(config, name)


def _as_text(owner: str) -> str:
    if owner.startswith("!"):
        return f"without `{owner[1:]}`"
    name, _, value = owner.partition("=")
    return f"with `{name}` {value}".rstrip()


def _is_set(config: Any, name: str) -> bool:
    return getattr(config, name) not in (None, False, (), "")


def add_config(parser: argparse.ArgumentParser, config: type) -> None:
    """Add one flag per :func:`option` of ``config``, in its groups and in field order, inherited ones last."""
    hints = _type_hints(config)
    groups: dict[str, Any] = {}
    declared_here = inspect.get_annotations(config)
    # The sort is stable: fields of the command first, then those of shared blocks, each in the order of declaration.
    for f in sorted(dataclasses.fields(config), key=lambda f: f.name not in declared_here):
        title = f.metadata.get("group", "options")
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_flag(groups[title], f, hints[f.name])


def from_namespace(config: type[T], namespace: argparse.Namespace) -> T:
    """Build ``config`` from parsed flags; flags that are not its fields are ignored."""
    names = {f.name for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    parsed = vars(namespace)
    values = {}
    for name, value in parsed.items():
        if name in names:
            # argparse makes lists; settings are hashable, so they have tuples.
            values[name] = tuple(value) if isinstance(value, list) else value
    for name in names:
        positional = f"{name}{_POSITIONAL}"
        if parsed.get(positional) is not None:
            values[name] = parsed[positional]
        elif positional in parsed and values[name] is None:
            raise UsageError(f"`{name}` is required")
    built = config(**values)
    if not isinstance(built, Config):
        check(built)
    return built


def parse(parser: argparse.ArgumentParser, config: type[T], argv: list[str] | None = None) -> T:
    """Add the flags of ``config`` and ``--recipe FILE`` to ``parser`` and read ``argv``.

    A flag on the command line wins over the recipe, the recipe over the default; a required setting may stand in
    either. Raises :class:`InputError` for a recipe that cannot be used.
    """
    words = sys.argv[1:] if argv is None else argv
    for word in words:
        # Python reads bytes that are not UTF-8 as lone surrogates.
        if any(0xD800 <= ord(character) <= 0xDFFF for character in word):
            parser.error(f"the argument {word!r} is not UTF-8 text")
    add_config(parser, config)
    parser.add_argument(
        "--recipe",
        metavar="FILE",
        help="a TOML file of these settings; flags given here win over it",
    )
    recipe = recipe_of(argv)
    if recipe:
        values = recipe_values(config, recipe)
        # As defaults, so that flags win over them.
        parser.set_defaults(**values)
        for action in parser._actions:
            action.required = action.required and action.dest not in values
    return from_namespace(config, parser.parse_args(argv))


def recipe_of(argv: list[str] | None) -> str | None:
    """The value of ``--recipe``, if it is given."""
    # Read before all other flags, because the recipe sets their defaults. `nargs="?"`: that a value is missing is
    # left to the parser of the command, which complains about it with its usage.
    probe = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    probe.add_argument("--recipe", nargs="?")
    recipe: str | None = probe.parse_known_args(argv)[0].recipe
    return recipe


def recipe_values(config: type, path: str | Path) -> dict[str, Any]:
    """The settings that a recipe names, checked against ``config``; it need not name all that are required."""
    return checked_values(config, read_toml(path), str(path))


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
    values = checked_values(config, data, source)
    required = set()
    for f in dataclasses.fields(config):  # type: ignore[arg-type]
        if f.default is MISSING and f.default_factory is MISSING:
            required.add(f.name)
    missing = sorted(required - set(values))
    if missing:
        raise InputError(f"{source}: missing {', '.join(missing)}")
    return config(**values)


def checked_values(config: type, data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The settings that ``data`` gives, with names and types checked against ``config``; required ones may be missing.

    Raises :class:`InputError` or :class:`UsageError` naming ``source`` and the key.
    """
    hints = _type_hints(config)
    known = {f.name: f for f in dataclasses.fields(config)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in known:
            raise InputError(f"{source}: no setting named {key!r}.{suggest(name, known)}")
        values[name] = _check_type(value, hints[name], f"{source}: {key}")
        choices = known[name].metadata.get("choices")
        if not choices or value is None:
            continue
        selection = value if isinstance(value, list) else (value,)
        for choice in selection:
            if choice not in choices:
                raise InputError(f"{source}: {key} is {choice!r}; use one of {', '.join(choices)}")
    return values


def to_dict(config: Any) -> dict[str, Any]:
    """Plain JSON-able values of a config."""
    values = dataclasses.asdict(config)
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = list(value)
    return values


def subset(config: Any, kind: type[T], **changes: Any) -> T:
    """The settings of ``kind``, a block that ``config`` shares, as an object of their own, with ``changes``."""
    names = {f.name for f in dataclasses.fields(config)}
    shared = {}
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        if f.name in names:
            shared[f.name] = getattr(config, f.name)
    return kind(**shared | changes)


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
            flag = flag_of(f)
            if value is False:
                flag = flag.replace("--", "--no-", 1)
            words.append(flag)
        if isinstance(value, tuple):
            words += map(str, value)
        elif not isinstance(value, bool):
            words.append(str(value))
    return required + optional


def differences(existing: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    """`` `top_k` 32 (requested 64), ...`` over the settings that differ; empty if they agree."""
    # A dict keeps the order of the existing settings; new ones follow.
    names = dict.fromkeys([*existing, *requested])
    changes = []
    for name in names:
        before = existing.get(name)
        after = requested.get(name)
        if before != after:
            changes.append(f"`{name}` {_format_value(before)} (requested {_format_value(after)})")
    return ", ".join(changes)


def _format_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str) and len(value) == 64:
        return f"{value[:12]}..."  # a digest
    if isinstance(value, str | list):
        return json.dumps(value)
    return str(value)


def _add_flag(group: Any, f: dataclasses.Field[Any], hint: Any) -> None:
    annotation = _unwrap(hint)
    if f.metadata.get("positional"):
        _add_positional(group, f, annotation)
    elif annotation.kind is bool:
        # A switch that is off needs no --no-flag. With the default None, neither flag was given and something else
        # decides.
        action = "store_true" if f.default is False else argparse.BooleanOptionalAction
        group.add_argument(
            flag_of(f),
            dest=f.name,
            action=action,
            default=f.default,
            help=f.metadata.get("help", ""),
        )
    else:
        required = f.default is MISSING
        settings: dict[str, Any] = {"metavar": _placeholder(f, annotation.kind)}
        if annotation.many:
            settings["nargs"] = "+"
            settings["action"] = _Gather
        group.add_argument(
            flag_of(f),
            dest=f.name,
            type=annotation.kind,
            required=required,
            default=None if required else f.default,
            help=f.metadata.get("help", ""),
            **settings,
        )


def _placeholder(f: dataclasses.Field[Any], kind: type) -> str:
    """What stands for the value on the help page.

    Choices are shown here and checked when the config is built, where a near miss gets a suggestion.
    """
    if f.metadata.get("metavar"):
        return str(f.metadata["metavar"])
    if f.metadata.get("choices"):
        return f"{{{','.join(f.metadata['choices'])}}}"
    return {int: "N", float: "X"}.get(kind, f.name.upper())


def _add_positional(group: Any, f: dataclasses.Field[Any], annotation: _Annotation) -> None:
    """An argument without a flag; a single one may also be given as a flag, which the help page names."""
    required = f.default is MISSING
    settings: dict[str, Any] = {"type": annotation.kind, "metavar": f.metadata.get("metavar")}
    if f.metadata.get("choices"):
        settings["choices"] = f.metadata["choices"]
    text = f.metadata.get("help", "")
    if annotation.many:
        if required:
            settings["nargs"] = "+"
        else:
            settings["nargs"] = "*"
            settings["default"] = f.default
        group.add_argument(f.name, help=text, **settings)
        return
    flag = f"--{f.name.replace('_', '-')}"
    group.add_argument(
        f"{f.name}{_POSITIONAL}", nargs="?", help=f"{text}; also as {flag}", **settings
    )
    default = None if required else f.default
    group.add_argument(
        flag, dest=f.name, type=annotation.kind, default=default, help=argparse.SUPPRESS
    )


class _Gather(argparse.Action):
    """A list flag given twice adds to the first; the first replaces the default."""

    def __call__(
        self,
        parser: Any,  # noqa: ARG002
        namespace: Any,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        gathered = getattr(namespace, self.dest)
        # Defaults are tuples, so a list is what an earlier use of the flag has left.
        earlier = gathered if isinstance(gathered, list) else []
        setattr(namespace, self.dest, [*earlier, *values])


class _Annotation(NamedTuple):
    """What the type annotation of a field allows."""

    kind: Any  #: type of the value, or of each value of a list
    optional: bool  #: None is allowed
    many: bool  #: a list is allowed


def _unwrap(hint: Any) -> _Annotation:
    """``str | None`` is an optional str, ``tuple[int, ...]`` many int, ``str | tuple[str, ...]`` many str."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        arguments = typing.get_args(hint)
        not_none = [argument for argument in arguments if argument is not type(None)]
        inner = _unwrap(not_none[-1])
        return _Annotation(inner.kind, type(None) in arguments, inner.many)
    if typing.get_origin(hint) is tuple:
        return _Annotation(typing.get_args(hint)[0], False, True)
    return _Annotation(hint, False, False)


def _check_type(value: Any, hint: Any, where: str) -> Any:
    """``value`` as ``hint`` wants it: lists become tuples, and integers floats where a float is expected.

    Raises :class:`UsageError` starting with ``where`` for another type.
    """
    annotation = _unwrap(hint)
    kind = annotation.kind
    if value is None and annotation.optional:
        return None
    if annotation.many:
        # `str | tuple[str, ...]`: one value stays one value.
        if isinstance(hint, types.UnionType) and isinstance(value, kind):
            return value
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where}: expected a list, got {value!r}")
        return tuple(_check_type(item, kind, where) for item in value)
    # A bool is an int to Python, but `true` is no number in a recipe.
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value
