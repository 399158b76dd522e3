"""Options of ``dupmae-ir eval.regressions run``, ``list``, ``report`` and ``accept``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option

PRESETS = ("release", "paper")
TIERS = ("tiny", "small", "full")
FORMATS = ("markdown", "json", "junit", "html")


@dataclass(frozen=True, kw_only=True)
class CaseOptions(OutputOptions):
    """Which cases to use and where their files are; shared by all four commands."""

    names: tuple[str, ...] = option(
        (), "REGRESSION or REGRESSION/CASE (default: all)", group="cases", metavar="NAME", positional=True
    )
    tier: str | None = option(
        None,
        "only cases of this tier. tiny: seconds; small: minutes; full: the papers' collections",
        group="cases",
        choices=TIERS,
    )
    recipes: str | None = option(
        None, "folder of the TOML files (default: eval in the checkout)", group="cases", metavar="FOLDER"
    )
    output: str = option(
        "runs/regressions", "folder for models, indexes, runs and results", group="folders", metavar="FOLDER"
    )
    collections: str | None = option(
        None, "folder of collections in BEIR's layout, searched before downloading", group="folders", metavar="FOLDER"
    )
    cache: str | None = option(
        None, "folder for downloads (default: the user's cache)", group="folders", metavar="FOLDER"
    )
    mirror: str | None = option(None, "base URL of a mirror to download from", group="folders", metavar="URL")
    catalogue: str | None = option(
        None,
        "TOML file overriding the catalogue of collections, for synthetic stand-ins; their values are not compared",
        group="folders",
        metavar="FILE",
    )
    model: tuple[str, ...] = option(
        (), "use this folder for a model, as NAME=FOLDER", group="folders", metavar="NAME=FOLDER"
    )
    preset: str | None = option(
        None,
        "choices of the recipes where a paper's text and its released code differ (default: release)",
        group="cases",
        choices=PRESETS,
    )
    threads: int | None = option(
        None,
        "CPU threads; 0 = one per available processor (default: 1 for tiers tiny and small, whose values are exact, "
        "and 0 for full)",
        group="compute",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class RunCasesOptions(CaseOptions):
    """Run cases with the toolkit's own commands, from download to evaluation, and compare each value with the paper and
    with the last accepted value. Earlier work is reused only if configuration, weights, data, code and environment are
    the same. The exit status is 1 if a case fails, is stale, or is better than its accepted value, and 3 if values
    differ from a paper's only.

    Examples:
        python -m dupmae_ir.eval.regressions run --tier small --collections DATA
    """

    dry_run: bool = option(False, "print the commands of each case; run nothing", group="run")
    fresh: bool = option(False, "do not reuse earlier models, indexes and results", group="run")
    require: tuple[str, ...] = option(
        (),
        "fail if a case of this name or pattern (such as 'bm25.beir/*') is skipped or not selected",
        group="run",
        metavar="PATTERN",
    )
    fail_on_skip: bool = option(False, "fail if any selected case is skipped", group="run")
    junit: str | None = option(None, "also write the results as JUnit XML", group="output", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class ListOptions(CaseOptions):
    """List the cases with the papers' numbers and the accepted values.

    Examples:
        python -m dupmae_ir.eval.regressions list --tier small
    """


@dataclass(frozen=True, kw_only=True)
class ReportOptions(CaseOptions):
    """Report the results in --output beside the papers' numbers and the accepted values. Runs nothing.

    Examples:
        python -m dupmae_ir.eval.regressions report --format html --file regressions.html
    """

    format: str = option("markdown", "output format; html is a page", group="output", choices=FORMATS)
    file: str | None = option(None, "file to write instead of standard output", group="output", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class AcceptOptions(CaseOptions):
    """Accept the results in --output as the expected values, and write them into the TOML files.

    Examples:
        python -m dupmae_ir.eval.regressions accept default.scifact
    """
