"""Measures by ir_measures' names, each with its definition in trec_eval.

A measure is ``FAMILY``, ``FAMILY@CUTOFF`` or ``FAMILY(rel=LEVEL)@CUTOFF``. trec_eval's own spellings
(``ndcg_cut.10``, ``recall_100``, ``map``) and Pyserini's ``judged.10`` are accepted too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dupmae_ir.errors import UnknownName, UsageError

if TYPE_CHECKING:
    import ir_measures


class Family(NamedTuple):
    """One family of measures and its trec_eval names."""

    trec: str  #: trec_eval's name without a cutoff ("" if a cutoff is required)
    trec_cut: (
        str  #: with a cutoff ("" if there is none); "-M" if trec_eval truncates the run instead
    )
    meaning: str


FAMILIES = {
    "nDCG": Family("ndcg", "ndcg_cut", "normalised discounted gain; gain = grade"),
    "MRR": Family("recip_rank", "-M", "1 / rank of the first relevant document; RR is the same"),
    "RR": Family("recip_rank", "-M", "MRR by its other name"),
    "MAP": Family("map", "map_cut", "mean average precision; AP is the same"),
    "AP": Family("map", "map_cut", "MAP by its other name"),
    "R": Family("", "recall", "share of the relevant documents found"),
    "P": Family("", "P", "share of relevant documents among the first k"),
    "Success": Family("", "success", "1 if a relevant document is among the first k"),
    "Judged": Family("", "judged", "share of judged documents among the first k"),
    "Rprec": Family("Rprec", "", "precision at rank R, R = number of relevant documents"),
    "Bpref": Family("bpref", "", "binary preference over judged documents"),
    "infAP": Family("infAP", "", "inferred AP; grade -1 means pooled but not judged"),
    "IPrec": Family("", "iprec_at_recall", "interpolated precision at a recall, IPrec@0.1"),
    "SetP": Family("set_P", "", "precision of the complete list"),
    "SetR": Family("set_recall", "", "recall of the complete list"),
    "SetF": Family("set_F", "", "F1 of the complete list"),
    "SetAP": Family("set_map", "", "SetP x SetR"),
    "NumRet": Family("num_ret", "", "documents returned; NumRet(rel=1): relevant ones"),
    "NumRel": Family("num_rel", "", "relevant documents there are"),
    "NumQ": Family("num_q", "", "queries that count"),
}
"""Every family by its name, in the order of the help page."""
GRADED = ("nDCG", "Judged", "NumRet", "NumQ")
"""Families whose documents are not relevant from a grade on: grades are gains, or are not used."""

_SPELLINGS = {
    trec: name
    for name, f in reversed(FAMILIES.items())
    for trec in (f.trec, f.trec_cut, name)
    if trec
}
_NAMED = re.compile(r"(?P<family>\w+?)(\((?P<parameters>[^()]*)\))?(@(?P<cutoff>.*))?")
_TREC = re.compile(r"(?P<family>[A-Za-z]\w*?)[._](?P<cutoffs>\d+(\.\d+)?(,\d+(\.\d+)?)*)")


@dataclass(frozen=True)
class Measure:
    """One measure of one family; ``str()`` gives the spelling that :func:`parse_measures` reads back."""

    family: str
    cutoff: int | float | None = None
    rel: int | None = None  #: smallest relevant grade; None if grades are gains

    def __str__(self) -> str:
        level = (
            f"(rel={self.rel})"
            if self.rel is not None and (self.rel != 1 or self.family == "NumRet")
            else ""
        )
        return f"{self.family}{level}" + (f"@{self.cutoff}" if self.cutoff is not None else "")

    @property
    def total(self) -> bool:
        """True if trec_eval sums over queries instead of averaging."""
        return self.family.startswith("Num")

    @property
    def depth(self) -> int | None:
        """Depth to which trec_eval must truncate the run (``-M``); None for the complete run."""
        return (
            int(self.cutoff)
            if self.cutoff is not None and FAMILIES[self.family].trec_cut == "-M"
            else None
        )

    @property
    def trec_name(self) -> str | None:
        """trec_eval's name, such as ``ndcg_cut.10``; None if trec_eval has no such measure."""
        family = FAMILIES[self.family]
        if self.family == "Judged":
            return None
        if self.cutoff is None or self.depth is not None:
            return (
                "num_rel_ret" if self.family == "NumRet" and self.rel is not None else family.trec
            )
        return (
            f"{family.trec_cut}.{self.cutoff:.2f}"
            if self.family == "IPrec"
            else f"{family.trec_cut}.{self.cutoff}"
        )

    def trec_flags(self, complete: bool = True) -> str | None:
        """trec_eval's command line for this value, such as ``-c -l 2 -M 10 -m recip_rank``; None if it has none."""
        level = f"-l {self.rel} " if self.rel is not None and self.rel != 1 else ""
        depth = f"-M {self.depth} " if self.depth is not None else ""
        return self.trec_name and f"{'-c ' if complete else ''}{level}{depth}-m {self.trec_name}"

    def in_ir_measures(self) -> ir_measures.Measure:
        """ir_measures' object, to be computed on a run that is truncated to :attr:`depth`."""
        import ir_measures

        measure = ir_measures.measures.registry[self.family]
        measure = measure if self.rel is None else measure(rel=self.rel)
        return measure if self.cutoff is None or self.depth is not None else measure @ self.cutoff


def parse_measures(texts: Iterable[str | Measure], rel_level: int = 1) -> tuple[Measure, ...]:
    """Measures in the order given, without duplicates. ``rel_level`` applies to measures without a level.

    Raises :class:`UnknownName` (with the nearest name) or :class:`UsageError`, all errors in one line.
    """
    measures: dict[Measure, None] = {}
    mistakes: list[UsageError] = []
    for text in texts:
        try:
            measures.update(
                dict.fromkeys(
                    [text] if isinstance(text, Measure) else _parse(text.strip(), rel_level)
                )
            )
        except UsageError as e:
            mistakes.append(e)
    if mistakes:
        raise type(mistakes[0])("; ".join(str(e).rstrip(".") for e in mistakes))
    if not measures:
        raise UsageError("no measure given; try nDCG@10 MRR@10 R@100")
    return tuple(measures)


def _parse(text: str, rel_level: int) -> list[Measure]:
    named = _TREC.fullmatch(text) or _NAMED.fullmatch(text)
    if not named:
        raise UsageError(f"{text!r} is not a measure; write one as nDCG@10 or AP(rel=2)@100")
    parts = named.groupdict()
    name, parameters, cutoff = (
        _SPELLINGS.get(parts["family"]),
        parts.get("parameters"),
        parts.get("cutoff"),
    )
    if parts["family"] in ("num_rel_ret", "NumRelRet"):
        name, parameters = "NumRet", parameters or f"rel={rel_level}"
    if name is None:
        spellings = {spelling.lower(): family for spelling, family in _SPELLINGS.items()}
        near = difflib.get_close_matches(parts["family"].lower(), spellings, n=1)
        rest = (
            f"@{parts.get('cutoffs') or cutoff}"
            if parts.get("cutoffs") or cutoff is not None
            else ""
        )
        hint = f" Did you mean {spellings[near[0]] + rest!r}?" if near else ""
        raise UnknownName(f"no measure named {text!r}; known: {', '.join(FAMILIES)}.{hint}")
    rel = None if parameters is None else _level(text, name, parameters)
    if rel is None and name not in GRADED:
        rel = rel_level
    cutoffs = parts["cutoffs"].split(",") if "cutoffs" in parts else [cutoff]
    return [Measure(name, _cutoff(text, name, one), rel) for one in cutoffs]


def _level(text: str, name: str, parameters: str) -> int:
    key, _, value = (part.strip() for part in parameters.partition("="))
    if key != "rel":
        raise UsageError(f"{text!r}: the only parameter is rel, as in AP(rel=2)")
    if name in GRADED and name != "NumRet":
        raise UsageError(f"{text!r}: {name} has no relevance level; omit (rel=...)")
    if not re.fullmatch(r"[0-9]+", value) or int(value) < 1:
        raise UsageError(f"{text!r}: rel must be a grade of at least 1, got {value!r}")
    return int(value)


def _cutoff(text: str, name: str, cutoff: str | None) -> int | float | None:
    if cutoff is None:
        if not FAMILIES[name].trec:
            raise UsageError(
                f"{text!r} needs a cutoff, as in {name}@{'0.1' if name == 'IPrec' else '10'}"
            )
        return None
    if not FAMILIES[name].trec_cut:
        raise UsageError(f"{text!r}: {name} has no cutoff; omit @{cutoff}")
    if name == "IPrec":
        if not re.fullmatch(r"[01](\.\d{1,2})?", cutoff) or float(cutoff) > 1:
            raise UsageError(
                f"{text!r}: the cutoff of IPrec is a recall from 0 to 1 in steps of 0.01, got {cutoff!r}"
            )
        return float(cutoff)
    if not re.fullmatch(r"[0-9]{1,9}", cutoff) or int(cutoff) < 1:
        raise UsageError(f"{text!r}: a cutoff is an integer of at least 1, got {cutoff!r}")
    return int(cutoff)
