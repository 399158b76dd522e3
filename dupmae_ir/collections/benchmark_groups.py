"""Groups of collections that are averaged or downloaded together, and means over complete groups."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from dupmae_ir.collections.catalogue import LOCAL, load
from dupmae_ir.registry import lookup

_TABLE = resources.files("dupmae_ir.collections").joinpath("groups.toml").read_text(encoding="utf-8")
GROUPS: Mapping[str, tuple[str, ...]] = {name: tuple(members) for name, members in tomllib.loads(_TABLE).items()}
"""Group -> members, in the papers' order."""


def expand(name: str, catalogue: str | Path | None = None) -> tuple[str, ...]:
    """The collections of a group, with nested groups expanded, or the collection of that name itself.

    Raises :class:`UnknownName`, suggesting the nearest name.
    """
    if name in GROUPS:
        return tuple(one for member in GROUPS[name] for one in expand(member, catalogue))
    if not name.startswith(LOCAL):
        lookup("collection or group", name, {**load(catalogue).collections, **GROUPS})
    return (name,)


def mean_over(group: str, values: Mapping[str, float]) -> tuple[float | None, tuple[str, ...]]:
    """(mean over a group, missing collections). The mean is None if a value is missing or not finite.

    ``values`` maps collections to values. CQADupStack counts once, as the mean of its twelve forums or as one value
    named ``beir-cqadupstack``; if none of the forums has a value, the group's name is reported as missing.
    """
    present = []
    missing: list[str] = []
    for member in lookup("group", group, GROUPS):
        value = values.get(member)
        if member in GROUPS and not _is_number(value):
            value, absent = mean_over(member, values)
            missing += absent if len(absent) < len(GROUPS[member]) else [member]
        elif not _is_number(value):
            missing.append(member)
        if value is not None:
            present.append(value)
    return (None if missing else math.fsum(present) / len(present)), tuple(missing)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
