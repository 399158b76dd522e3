"""Collections that are averaged or fetched together, and the mean that never leaves one out silently."""

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
"""Name -> members in the papers' order; beir-cqadupstack is a member of others and a group itself. beir-14 are the
public ones, which are also the ones CoT-MoTE's paper averages over (mote-14)."""


def expand(name: str, catalogue: str | Path | None = None) -> tuple[str, ...]:
    """The collections that a name stands for: a group's members, their members, or the collection itself.

    Raises :class:`UnknownName`, with the nearest name, for what is neither.
    """
    if name in GROUPS:
        return tuple(one for member in GROUPS[name] for one in expand(member, catalogue))
    if not name.startswith(LOCAL):
        lookup("collection or group", name, {**load(catalogue).collections, **GROUPS})
    return (name,)


def mean_over(group: str, values: Mapping[str, float]) -> tuple[float | None, tuple[str, ...]]:
    """(mean over a group, what is missing for it); the mean is None as soon as one value is missing or not a number.

    ``values`` go by collection. CQADupStack counts once, as the mean of its twelve forums (or as one value under
    ``beir-cqadupstack``); where none of the twelve is there, that one name is what is missing.
    """
    found = []
    missing: list[str] = []
    for member in lookup("group", group, GROUPS):
        value = values.get(member)
        if member in GROUPS and not _is_number(value):
            value, lacking = mean_over(member, values)
            missing += lacking if len(lacking) < len(GROUPS[member]) else [member]
        elif not _is_number(value):
            missing.append(member)
        if value is not None:
            found.append(value)
    return (None if missing else math.fsum(found) / len(found)), tuple(missing)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
