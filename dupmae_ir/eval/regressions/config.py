"""Options of ``dupmae-ir eval.regressions run``, ``list`` and ``report``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dupmae_ir.config import OutputOptions, compute_option, option, output_option

PRESETS = ("release", "paper")
TIERS = ("tiny", "small", "full")
FORMATS = ("text", "json", "html")

folder_option = partial(option, group="folders")
case_option = partial(option, group="cases")
run_option = partial(option, group="run")


@dataclass(frozen=True, kw_only=True)
class CaseOptions(OutputOptions):
    """Which cases to use and where their files are; shared by all commands."""

    names: tuple[str, ...] = case_option(
        (), "REGRESSION or REGRESSION/CASE (default: all)", metavar="NAME", positional=True
    )
    tier: str | None = case_option(
        None,
        "only cases of this tier. tiny: seconds; small: minutes; full: the papers' collections",
        choices=TIERS,
    )
    recipes: str | None = case_option(
        None, "folder of the TOML files (default: eval in the checkout)", metavar="FOLDER"
    )
    output: str = folder_option(
        "runs/regressions", "folder for models, indexes, runs and results", metavar="FOLDER"
    )
    collections: str | None = folder_option(
        None,
        "folder of collections in BEIR's layout, searched before downloading",
        metavar="FOLDER",
    )
    cache: str | None = folder_option(
        None, "folder for downloads (default: the user's cache)", metavar="FOLDER"
    )
    mirror: str | None = folder_option(None, "base URL of a mirror to download from", metavar="URL")
    catalogue: str | None = folder_option(
        None,
        "TOML file overriding the catalogue of collections, for synthetic stand-ins; their values are not compared",
        metavar="FILE",
    )
    model: tuple[str, ...] = folder_option(
        (), "use this folder for a model, as NAME=FOLDER", metavar="NAME=FOLDER"
    )
    preset: str | None = case_option(
        None,
        "choices of the recipes where a paper's text and its released code differ (default: release)",
        choices=PRESETS,
    )
    threads: int | None = compute_option(
        None,
        "CPU threads; 0 = one per available processor (default: 1 for tiers tiny and small, whose values are exact, "
        "and 0 for full)",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class RunCasesOptions(CaseOptions):
    """Run cases with the toolkit's own commands, from download to evaluation, and compare each value with the paper and
    with the last accepted value. Earlier work is reused only if configuration, weights, data, code and environment are
    the same. The exit status is 1 if a case fails, is stale, or is better than its accepted value, and 3 if values
    differ from a paper's only.

    Examples:
        dupmae-ir eval.regressions run --tier small --collections DATA
    """

    dry_run: bool = run_option(False, "print the commands of each case; run nothing")
    processes: int = compute_option(1, "processes of each training, one on each GPU", above=0)
    fresh: bool = run_option(False, "do not reuse earlier models, indexes and results")
    fail_on_skip: bool = run_option(False, "fail if any selected case is skipped")


@dataclass(frozen=True, kw_only=True)
class ListOptions(CaseOptions):
    """List the cases with the papers' numbers and the accepted values.

    Examples:
        dupmae-ir eval.regressions list --tier small
    """


@dataclass(frozen=True, kw_only=True)
class ReportOptions(CaseOptions):
    """Report the results in --output beside the papers' numbers and the accepted values. Runs nothing.

    Examples:
        dupmae-ir eval.regressions report --format html --file regressions.html
    """

    format: str = output_option("text", "output format; html is a page", choices=FORMATS)
    file: str | None = output_option(
        None, "file to write instead of standard output", metavar="FILE"
    )
