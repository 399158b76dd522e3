"""The arguments of public functions, checked against their annotations before anything else happens.

:func:`checked` is the only place where a public function checks the type of an argument. A wrong one is a
:class:`UsageError` that names the parameter, what was expected and what was given. Numbers of numpy become Python's,
and anything that names a file (:class:`os.PathLike`) is accepted as a path.

Annotations that say how data is held in memory, such as an iterable of documents, are not checked here:
:mod:`dupmae_ir.io.in_memory` reads such data item by item.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Unpack

from dupmae_ir.errors import UsageError
from dupmae_ir.registry import suggest

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[str, object], object]
"""Takes the name of a parameter and a value, and returns the value to use. Raises :class:`UsageError`."""
SHOWN = 60
"""Characters of a wrong value in a message."""


def checked(function: F) -> F:
    """A function that checks its arguments against the annotations of ``function`` and then calls it."""
    signature = inspect.signature(function)

    # Annotations are read at the first call, because reading them takes time.
    @functools.cache
    def checks() -> dict[str, Check]:
        by_parameter = {}
        for name, parameter in signature.parameters.items():
            if parameter.annotation is inspect.Parameter.empty:
                continue
            check = _check_of(_evaluated(parameter.annotation, function), parameter)
            if check is not None:
                by_parameter[name] = check
        return by_parameter

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        values = bound.arguments
        for name, check in checks().items():
            if name in values:
                values[name] = check(name, values[name])
        return function(*bound.args, **bound.kwargs)

    return typing.cast("F", wrapper)


def is_path(value: object) -> bool:
    """Whether ``value`` names a file: a string or a path of any library."""
    return isinstance(value, str | os.PathLike)


def described(value: object) -> str:
    """A wrong value, as a message shows it: its representation, shortened, with its type if it is no literal."""
    text = " ".join(repr(value).split())
    if len(text) > SHOWN:
        text = text[: SHOWN - 3] + "..."
    if value is None or isinstance(value, str | int | float):
        return text
    return f"{text} (a {type(value).__name__})"


def wrong_type(name: str, expected: str, value: object) -> UsageError:
    """The error for an argument ``name`` that is not what is expected."""
    return UsageError(f"`{name}`: expected {expected}, got {described(value)}")


class _Kind(NamedTuple):
    """One member of a union of types."""

    expected: str  #: in words, for messages
    convert: Callable[[object], object]  #: the value to use; raises TypeError for another type


def _check_of(annotation: object, parameter: inspect.Parameter) -> Check | None:
    """The check of a parameter; None if its annotation says nothing that can be checked here."""
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        if typing.get_origin(annotation) is not Unpack:
            return None
        hints = typing.get_type_hints(typing.get_args(annotation)[0])
        return functools.partial(_check_keywords, {name: _kinds(h) for name, h in hints.items()})
    kinds = _kinds(annotation)
    if kinds is None:
        return None
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return functools.partial(_check_each, kinds)
    return functools.partial(_check_one, kinds)


def _check_one(kinds: Sequence[_Kind], name: str, value: object) -> object:
    for kind in kinds:
        try:
            return kind.convert(value)
        except TypeError:
            continue
    # Two members of a union can be the same in words.
    expected = dict.fromkeys(kind.expected for kind in kinds)
    raise wrong_type(name, " or ".join(expected), value)


def _check_each(kinds: Sequence[_Kind], name: str, values: object) -> object:
    assert isinstance(values, tuple)  # of a parameter such as *paths
    return tuple(_check_one(kinds, name, value) for value in values)


def _check_keywords(
    known: Mapping[str, Sequence[_Kind] | None], _name: str, values: object
) -> dict[str, object]:
    """The check of keywords that a TypedDict or a dataclass lists."""
    assert isinstance(values, dict)  # of a parameter such as **settings
    checked_values = {}
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"no parameter `{name}`.{suggest(name, known)}")
        kinds = known[name]
        checked_values[name] = value if kinds is None else _check_one(kinds, name, value)
    return checked_values


def _evaluated(annotation: object, function: Callable[..., Any]) -> object:
    """The annotation as an object; the parameter is not checked if only type checkers know its names."""
    names = vars(sys.modules[function.__module__])
    # One at a time: a name that is not imported would make all annotations of the function unknown.
    alone = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        return typing.get_type_hints(alone, names)["value"]
    except NameError:
        return Any


def _kinds(annotation: object) -> list[_Kind] | None:
    """The types that an annotation allows; None if one of them cannot be checked here."""
    members = [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        members = list(typing.get_args(annotation))
    if str in members and Path in members:
        # A string and a path are one kind to the caller.
        members = [member for member in members if member is not str]
    kinds = []
    for member in members:
        kind = _kind(member)
        if kind is None:
            return None
        kinds.append(kind)
    return kinds


def check_fields(kind: type, values: Mapping[str, object]) -> dict[str, object]:
    """``values`` of fields of the dataclass ``kind``, checked against its annotations.

    Raises :class:`UsageError` for a name that is no field and for a wrong type.
    """
    hints = typing.get_type_hints(kind)
    known = {field.name: _kinds(hints[field.name]) for field in dataclasses.fields(kind)}
    return _check_keywords(known, "", dict(values))


def _kind(member: object) -> _Kind | None:
    if member is Any:
        return None
    if member is None or member is types.NoneType:
        return _Kind("None", _as_none)
    simple = _SIMPLE.get(member) if isinstance(member, type) else None
    if simple is not None:
        return simple
    origin = typing.get_origin(member)
    if origin is Literal:
        choices = typing.get_args(member)
        return _Kind(
            f"one of {', '.join(map(str, choices))}", functools.partial(_as_choice, choices)
        )
    if origin is tuple and typing.get_args(member) == (str, ...):
        return _Kind("several strings", lambda value: tuple(_as_strings(value)))
    if origin in (Sequence, Iterable) and typing.get_args(member)[0] in (str, str | Path):
        return _Kind("several strings", _as_strings)
    if origin is Mapping:
        return _Kind("a mapping", functools.partial(_as_instance, Mapping))
    if origin is Callable:
        return _Kind("a function", _as_function)
    if isinstance(member, type) and origin is None and not getattr(member, "_is_protocol", False):
        if member.__module__ == "builtins":
            return None
        return _Kind(f"a {member.__name__}", functools.partial(_as_instance, member))
    return None


def _as_none(value: object) -> None:
    if value is not None:
        raise TypeError


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    # A string of numpy becomes Python's.
    return str(value)


def _as_path(value: object) -> str | Path:
    # An empty name is the current folder to pathlib, and a mistake here.
    if isinstance(value, str) and value:
        return str(value)
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str):
            return Path(path)
    raise TypeError


def _as_truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
        return bool(value)
    raise TypeError


def _as_integer(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)  # type: ignore[arg-type]  # TypeError for what is no integer


def _as_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    return float(value)


def _as_choice(choices: Sequence[object], value: object) -> object:
    for choice in choices:
        if isinstance(value, type(choice)) and value == choice:
            return choice
    raise TypeError


def _as_strings(value: object) -> list[str]:
    # A string is an iterable of strings to Python, and a mistake here.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError
    texts = list(value)
    # The usual case, in a tenth of the time: a search can be restricted to 100,000 ids.
    if set(map(type, texts)) <= {str}:
        return texts
    if not all(is_path(text) for text in texts):
        raise TypeError
    return [os.fspath(text) for text in texts]


def _as_function(value: object) -> object:
    if not callable(value):
        raise TypeError
    return value


def _as_instance(kind: type, value: object) -> object:
    if not isinstance(value, kind):
        raise TypeError
    return value


_SIMPLE: dict[type, _Kind] = {
    str: _Kind("a string", _as_text),
    Path: _Kind("a path", _as_path),
    bool: _Kind("True or False", _as_truth),
    int: _Kind("an integer", _as_integer),
    float: _Kind("a number", _as_number),
}
