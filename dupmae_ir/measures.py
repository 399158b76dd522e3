"""Measures by ir_measures' names, each with its definition in trec_eval.

A measure is ``FAMILY``, ``FAMILY@CUTOFF`` or ``FAMILY(rel=LEVEL)@CUTOFF``. trec_eval's own spellings
(``ndcg_cut.10``, ``recall_100``, ``map``) and Pyserini's ``judged.10`` are accepted too.

Everything else that ir_measures knows (ERR, RBP, alpha_nDCG, nDCG with other gains) is computed by the library that
ir_measures calls its provider, if it is installed.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dupmae_ir.errors import UnknownName, UsageError

if TYPE_CHECKING:
    import ir_measures


class Family(NamedTuple):
    """One family of measures and its trec_eval names."""

    trec: str  #: trec_eval's name without a cutoff ("" if a cutoff is required)
    #: trec_eval's name with a cutoff ("" if there is none); "-M" if trec_eval truncates the run instead
    trec_cut: str
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


def _spellings() -> dict[str, str]:
    """Every spelling of a family, trec_eval's included -> name of the family."""
    names = {}
    # Backwards, so that the first family of a trec_eval name wins: recip_rank is MRR, not RR.
    for name, family in reversed(FAMILIES.items()):
        for spelling in (family.trec, family.trec_cut, name):
            if spelling:
                names[spelling] = name
    return names


_SPELLINGS = _spellings()
_NAMED = re.compile(r"(?P<family>\w+?)(\((?P<parameters>[^()]*)\))?(@(?P<cutoff>.*))?")
_OTHER_PARAMETER = re.compile(r"\((?!rel=)")
_TREC = re.compile(r"(?P<family>[A-Za-z]\w*?)[._](?P<cutoffs>\d+(\.\d+)?(,\d+(\.\d+)?)*)")


@dataclass(frozen=True)
class Measure:
    """One measure of one family; ``str()`` gives the spelling that :func:`parse_measures` reads back."""

    family: str
    cutoff: int | float | None = None
    rel: int | None = None  #: smallest relevant grade; None if grades are gains
    library: str = ""  #: ir_measures' spelling of a measure beyond :data:`FAMILIES`

    def __str__(self) -> str:
        if self.library:
            return self.library
        text = self.family
        # Grade 1 is trec_eval's default; NumRet alone counts something else without a level.
        if self.rel is not None and (self.rel != 1 or self.family == "NumRet"):
            text += f"(rel={self.rel})"
        if self.cutoff is not None:
            text += f"@{self.cutoff}"
        return text

    @property
    def total(self) -> bool:
        """True if trec_eval sums over queries instead of averaging."""
        return self.family.startswith("Num") and not self.library

    @property
    def depth(self) -> int | None:
        """Depth to which trec_eval must truncate the run (``-M``); None for the complete run."""
        if self.library or self.cutoff is None or FAMILIES[self.family].trec_cut != "-M":
            return None
        return int(self.cutoff)

    @property
    def trec_name(self) -> str | None:
        """trec_eval's name, such as ``ndcg_cut.10``; None if trec_eval has no such measure."""
        if self.library or self.family == "Judged":
            return None
        family = FAMILIES[self.family]
        if self.cutoff is None or self.depth is not None:
            if self.family == "NumRet" and self.rel is not None:
                return "num_rel_ret"
            return family.trec
        if self.family == "IPrec":
            return f"{family.trec_cut}.{self.cutoff:.2f}"
        return f"{family.trec_cut}.{self.cutoff}"

    def trec_flags(self, complete: bool = True) -> str | None:
        """trec_eval's command line for this value, such as ``-c -l 2 -M 10 -m recip_rank``; None if it has none."""
        if self.trec_name is None:
            return None
        flags = []
        if complete:
            flags.append("-c")
        if self.rel is not None and self.rel != 1:
            flags.append(f"-l {self.rel}")
        if self.depth is not None:
            flags.append(f"-M {self.depth}")
        flags.append(f"-m {self.trec_name}")
        return " ".join(flags)

    def in_ir_measures(self) -> ir_measures.Measure:
        """ir_measures' object, to be computed on a run that is truncated to :attr:`depth`."""
        import ir_measures

        if self.library:
            return _parsed_by_library(self.library)
        measure = ir_measures.measures.registry[self.family]
        if self.rel is not None:
            measure = measure(rel=self.rel)
        if self.cutoff is None or self.depth is not None:
            return measure
        return measure @ self.cutoff


def parse_measures(texts: Iterable[str | Measure], rel_level: int = 1) -> tuple[Measure, ...]:
    """Measures in the order given, without duplicates. ``rel_level`` applies to measures without a level.

    Raises :class:`UnknownName` (with the nearest name) or :class:`UsageError`, all errors in one line.
    """
    measures: dict[Measure, None] = {}
    mistakes: list[UsageError] = []
    for text in texts:
        if isinstance(text, Measure):
            measures[text] = None
            continue
        if not isinstance(text, str):
            raise UsageError(f"`measures`: {text!r} is neither a name nor a Measure")
        try:
            measures.update(dict.fromkeys(_parse_any(text.strip(), rel_level)))
        except UsageError as e:
            mistakes.append(e)
    if mistakes:
        raise type(mistakes[0])("; ".join(str(e).rstrip(".") for e in mistakes))
    if not measures:
        raise UsageError("no measure given; try nDCG@10 MRR@10 R@100")
    return tuple(measures)


def _parse_any(text: str, rel_level: int) -> list[Measure]:
    """The measures of :data:`FAMILIES` that a text names, or the one that ir_measures knows by this name."""
    try:
        return _parse(text, rel_level)
    except UsageError as e:
        # A measure of ours with a mistake is no measure of another library, unless it has another parameter.
        if not isinstance(e, UnknownName) and not _OTHER_PARAMETER.search(text):
            raise
        measures = _of_library(text, rel_level)
        if not measures:
            raise
        return measures


def _of_library(text: str, rel_level: int) -> list[Measure]:
    """The measure that ir_measures knows by this name; none for any other text.

    Raises :class:`UsageError` if no library that computes it is installed.
    """
    import ir_measures

    try:
        parsed = _parsed_by_library(text)
        # Fails for a parameter that the measure does not have.
        spelling = str(parsed)
    except (
        NameError,
        ValueError,
        SyntaxError,
        TypeError,
        KeyError,
        AttributeError,
        AssertionError,
    ):
        return []
    with contextlib.suppress(UsageError):
        # Another spelling of a measure of ours.
        return _parse(spelling, rel_level)
    providers = [p for p in ir_measures.providers.registry.values() if p.supports(parsed)]
    if any(provider.is_available() for provider in providers):
        return [Measure(str(parsed.NAME), library=spelling)]
    advice = [provider.install_instructions() for provider in providers]
    commands = " or ".join(_quoted(line) for line in advice if line)
    if not commands:
        return []
    raise UsageError(f"{text!r} needs a library that is not installed: {commands}")


def _parsed_by_library(text: str) -> ir_measures.Measure:
    import ir_measures

    with warnings.catch_warnings():
        # Its parser uses classes of Python's `ast` that are deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        return ir_measures.parse_measure(text)


def _quoted(command: str) -> str:
    """A pip command with its package in quotes, because shells read brackets."""
    words = []
    for word in command.split():
        words.append(f"'{word}'" if "[" in word else word)
    return " ".join(words)


def _parse(text: str, rel_level: int) -> list[Measure]:
    # trec_eval's first: `ndcg_cut_10` would also match as a family without a cutoff.
    match = _TREC.fullmatch(text) or _NAMED.fullmatch(text)
    if not match:
        raise UsageError(f"{text!r} is not a measure; write one as nDCG@10 or AP(rel=2)@100")
    # Only trec_eval's spelling has several cutoffs, only ours has parameters.
    parts = match.groupdict()
    name = _SPELLINGS.get(parts["family"])
    parameters = parts.get("parameters")
    if parts["family"] in ("num_rel_ret", "NumRelRet"):
        name = "NumRet"
        parameters = parameters or f"rel={rel_level}"
    cutoffs: list[str | None] = [parts.get("cutoff")]
    if "cutoffs" in parts:
        cutoffs = list(parts["cutoffs"].split(","))
    if name is None:
        hint = _nearest_measure(parts["family"], cutoffs)
        raise UnknownName(f"no measure named {text!r}; known: {', '.join(FAMILIES)}.{hint}")

    rel = None
    if parameters is not None:
        rel = _level(text, name, parameters)
    elif name not in GRADED:
        rel = rel_level
    return [Measure(name, _cutoff(text, name, cutoff), rel) for cutoff in cutoffs]


def _nearest_measure(family: str, cutoffs: list[str | None]) -> str:
    """`` Did you mean 'nDCG@10'?``, with the cutoffs that were given; empty if no name is near."""
    spellings = {spelling.lower(): name for spelling, name in _SPELLINGS.items()}
    matches = difflib.get_close_matches(family.lower(), spellings, n=1)
    if not matches:
        return ""
    measure = spellings[matches[0]]
    if cutoffs != [None]:
        measure += "@" + ",".join(map(str, cutoffs))
    return f" Did you mean {measure!r}?"


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
            example = "0.1" if name == "IPrec" else "10"
            raise UsageError(f"{text!r} needs a cutoff, as in {name}@{example}")
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
