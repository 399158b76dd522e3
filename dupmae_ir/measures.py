"""Measures by ir_measures' names, each with its definition in trec_eval.

A measure is ``FAMILY``, ``FAMILY@CUTOFF`` or ``FAMILY(rel=LEVEL)@CUTOFF``. trec_eval's own spellings
(``ndcg_cut.10``, ``recall_100``, ``map``) and Pyserini's ``judged.10`` are accepted too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dupmae_ir.errors import UnknownName, UsageError

Need = Literal["no", "may", "must"]


@dataclass(frozen=True)
class Family:
    """One family of measures and its trec_eval names."""

    trec: str  #: trec_eval's name without a cutoff ("" if a cutoff is required)
    trec_cut: str = ""  #: trec_eval's name with a cutoff; "-M" if trec_eval truncates the run instead
    cutoff: Need = "no"
    binary: bool = True  #: documents are relevant from a grade on; False: grades are gains, or are not used
    total: bool = False  #: summed over queries instead of averaged
    meaning: str = ""


FAMILIES = {
    "nDCG": Family("ndcg", "ndcg_cut", "may", binary=False, meaning="normalised discounted gain; gain = grade"),
    "MRR": Family("recip_rank", "-M", "may", meaning="1 / rank of the first relevant document; RR is the same"),
    "RR": Family("recip_rank", "-M", "may", meaning="MRR by its other name"),
    "MAP": Family("map", "map_cut", "may", meaning="mean average precision; AP is the same"),
    "AP": Family("map", "map_cut", "may", meaning="MAP by its other name"),
    "R": Family("", "recall", "must", meaning="share of the relevant documents found"),
    "P": Family("", "P", "must", meaning="share of relevant documents among the first k"),
    "Success": Family("", "success", "must", meaning="1 if a relevant document is among the first k"),
    "Judged": Family("", "", "must", binary=False, meaning="share of judged documents among the first k"),
    "Rprec": Family("Rprec", meaning="precision at rank R, R = number of relevant documents"),
    "Bpref": Family("bpref", meaning="binary preference over judged documents"),
    "infAP": Family("infAP", meaning="inferred AP; grade -1 means pooled but not judged"),
    "IPrec": Family("", "iprec_at_recall", "must", meaning="interpolated precision at a recall, IPrec@0.1"),
    "SetP": Family("set_P", meaning="precision of the whole list"),
    "SetR": Family("set_recall", meaning="recall of the whole list"),
    "SetF": Family("set_F", meaning="F1 of the whole list"),
    "SetAP": Family("set_map", meaning="SetP x SetR"),
    "NumRet": Family("num_ret", binary=False, total=True, meaning="documents returned; NumRet(rel=1): relevant ones"),
    "NumRel": Family("num_rel", total=True, meaning="relevant documents there are"),
    "NumQ": Family("num_q", binary=False, total=True, meaning="queries that count"),
}
"""Every family by its name, in the order of the help page."""

_OTHER_SPELLINGS = {
    "bpref": "Bpref",
    "iprec_at_recall": "IPrec",
    "judged": "Judged",
    "map": "MAP",
    "map_cut": "MAP",
    "ndcg": "nDCG",
    "ndcg_cut": "nDCG",
    "num_q": "NumQ",
    "num_rel": "NumRel",
    "num_rel_ret": "NumRelRet",
    "num_ret": "NumRet",
    "recall": "R",
    "recip_rank": "MRR",
    "set_F": "SetF",
    "set_P": "SetP",
    "set_map": "SetAP",
    "set_recall": "SetR",
    "success": "Success",
}
_IR_MEASURES = re.compile(r"(?P<family>\w+?)(\((?P<parameters>[^()]*)\))?(@(?P<cutoff>.*))?")
_TREC = re.compile(r"(?P<name>[A-Za-z]\w*?)[._](?P<cutoffs>\d+(\.\d+)?(,\d+(\.\d+)?)*)")


@dataclass(frozen=True)
class Measure:
    """One measure of one family; ``str()`` gives the spelling that :func:`parse_measures` reads back."""

    family: str
    cutoff: int | float | None = None
    rel: int | None = None  #: smallest relevant grade; None if grades are gains

    def __str__(self) -> str:
        level = f"(rel={self.rel})" if self.rel is not None and (self.rel != 1 or self.family == "NumRet") else ""
        return f"{self.family}{level}" + (f"@{self.cutoff}" if self.cutoff is not None else "")

    @property
    def total(self) -> bool:
        """True where trec_eval sums over queries instead of averaging."""
        return FAMILIES[self.family].total

    @property
    def depth(self) -> int | None:
        """Depth to which trec_eval must truncate the run (``-M``); None for the whole run."""
        return int(self.cutoff) if self.cutoff is not None and FAMILIES[self.family].trec_cut == "-M" else None

    @property
    def trec_name(self) -> str | None:
        """pytrec_eval's name, such as ``ndcg_cut.10``; None if trec_eval has no such measure."""
        family = FAMILIES[self.family]
        if self.family == "Judged":
            return None
        if self.family == "NumRet" and self.rel is not None:
            return "num_rel_ret"
        if self.cutoff is None or self.depth is not None:
            return family.trec
        return f"{family.trec_cut}.{self.cutoff:.2f}" if self.family == "IPrec" else f"{family.trec_cut}.{self.cutoff}"

    def trec_flags(self, complete: bool = True) -> str | None:
        """trec_eval's command line for this value, such as ``-c -l 2 -M 10 -m recip_rank``; None if it has none."""
        if self.trec_name is None:
            return None
        level = f"-l {self.rel} " if self.rel is not None and self.rel != 1 else ""
        depth = f"-M {self.depth} " if self.depth is not None else ""
        return f"{'-c ' if complete else ''}{level}{depth}-m {self.trec_name}"


def parse_measures(texts: Iterable[str | Measure], rel_level: int = 1) -> tuple[Measure, ...]:
    """Measures in the order given, without duplicates. ``rel_level`` applies to measures without a level.

    Raises :class:`UnknownName` (with the nearest name) or :class:`UsageError`, all errors in one line.
    """
    found: dict[Measure, None] = {}
    mistakes: list[UsageError] = []
    for text in texts:
        try:
            found.update(dict.fromkeys([text] if isinstance(text, Measure) else _parse(text, rel_level)))
        except UsageError as e:
            mistakes.append(e)
    if mistakes:
        raise type(mistakes[0])("; ".join(str(e).rstrip(".") for e in mistakes))
    if not found:
        raise UsageError("no measure given; try nDCG@10 MRR@10 R@100")
    return tuple(found)


def _parse(text: str, rel_level: int) -> list[Measure]:
    text = text.strip()
    if trec := _TREC.fullmatch(text):
        return [_measure(text, trec["name"], None, cutoff, rel_level) for cutoff in trec["cutoffs"].split(",")]
    named = _IR_MEASURES.fullmatch(text)
    if not named:
        raise UsageError(f"{text!r} is not a measure; write one as nDCG@10 or AP(rel=2)@100")
    return [_measure(text, named["family"], named["parameters"], named["cutoff"], rel_level)]


def _measure(text: str, name: str, parameters: str | None, cutoff: str | None, rel_level: int) -> Measure:
    name = _OTHER_SPELLINGS.get(name, name)
    if name == "NumRelRet":
        name, parameters = "NumRet", parameters or f"rel={rel_level}"
    if name not in FAMILIES:
        near = _nearest(name)
        rest = f"@{cutoff}" if cutoff is not None else ""
        hint = f" Did you mean {near + rest!r}?" if near else ""
        raise UnknownName(f"no measure named {text!r}; known: {', '.join(FAMILIES)}.{hint}")
    rel = _level(text, name, parameters)
    if rel is None and FAMILIES[name].binary:
        rel = rel_level
    return Measure(name, _cutoff(text, name, cutoff), rel)


def _nearest(name: str) -> str | None:
    """The family with the nearest name, in any spelling and case."""
    spellings = {s.lower(): f for s, f in (*_OTHER_SPELLINGS.items(), *((f, f) for f in FAMILIES))}
    near = difflib.get_close_matches(name.lower(), spellings, n=1)
    return spellings[near[0]] if near else None


def _level(text: str, name: str, parameters: str | None) -> int | None:
    if parameters is None:
        return None
    key, _, value = (part.strip() for part in parameters.partition("="))
    if key != "rel":
        raise UsageError(f"{text!r}: the only parameter is rel, as in AP(rel=2)")
    if not FAMILIES[name].binary and name != "NumRet":
        raise UsageError(f"{text!r}: {name} has no relevance level; omit (rel=...)")
    if not re.fullmatch(r"[0-9]+", value) or int(value) < 1:
        raise UsageError(f"{text!r}: rel must be a grade of at least 1, got {value!r}")
    return int(value)


def _cutoff(text: str, name: str, cutoff: str | None) -> int | float | None:
    need = FAMILIES[name].cutoff
    if cutoff is None:
        if need == "must":
            raise UsageError(f"{text!r} needs a cutoff, as in {name}@{'0.1' if name == 'IPrec' else '10'}")
        return None
    if need == "no":
        raise UsageError(f"{text!r}: {name} has no cutoff; omit @{cutoff}")
    if name == "IPrec":
        if not re.fullmatch(r"[01](\.\d{1,2})?", cutoff) or float(cutoff) > 1:
            raise UsageError(f"{text!r}: the cutoff of IPrec is a recall from 0 to 1 in steps of 0.01, got {cutoff!r}")
        return float(cutoff)
    if not re.fullmatch(r"[0-9]{1,9}", cutoff) or int(cutoff) < 1:
        raise UsageError(f"{text!r}: a cutoff is an integer of at least 1, got {cutoff!r}")
    return int(cutoff)
