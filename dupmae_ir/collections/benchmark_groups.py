"""Groups of collections that are averaged or downloaded together, and means over complete groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from dupmae_ir.collections.catalogue import LOCAL, load
from dupmae_ir.registry import lookup

_FORUMS = (
    "android",
    "english",
    "gaming",
    "gis",
    "mathematica",
    "physics",
    "programmers",
    "stats",
    "tex",
    "unix",
    "webmasters",
    "wordpress",
)
_CQADUPSTACK = tuple(f"beir-cqadupstack-{forum}" for forum in _FORUMS)
_BEIR_18 = tuple(
    f"beir-{name}"
    for name in (
        "trec-covid",
        "bioasq",
        "nfcorpus",
        "nq",
        "hotpotqa",
        "fiqa",
        "signal1m",
        "trec-news",
        "robust04",
        "arguana",
        "webis-touche2020",
        "cqadupstack",
        "quora",
        "dbpedia-entity",
        "scidocs",
        "fever",
        "climate-fever",
        "scifact",
    )
)
_LICENSED = ("beir-bioasq", "beir-signal1m", "beir-trec-news", "beir-robust04")
_PUBLIC = tuple(name for name in _BEIR_18 if name not in _LICENSED)

GROUPS: Mapping[str, tuple[str, ...]] = {
    "msmarco": ("msmarco-passage", "msmarco-passage-titled", "msmarco-doc"),
    "dpr": ("dpr-nq", "dpr-trivia"),
    "beir-18": _BEIR_18,
    "beir-14": _PUBLIC,
    "beir-4-licensed": _LICENSED,
    "mote-14": _PUBLIC,
    "beir-cqadupstack": _CQADUPSTACK,
    "cqadupstack": _CQADUPSTACK,
}
"""Group -> members, in the papers' order. beir-cqadupstack is a group and also a member of other groups. beir-14 has
the public sets, over which CoT-MoTE's paper averages, too (mote-14)."""


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
