"""``python -m dupmae_ir.collections``: which collections there are, and one command to have one."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dupmae_ir.collections import (
    GROUPS,
    Catalogue,
    Collection,
    Licensed,
    Place,
    Ready,
    expand,
    find,
    get,
    licence_message,
    load,
    problems,
    ready,
    state,
)
from dupmae_ir.collections.catalogue import LOCAL
from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, dispatch, say, table
from dupmae_ir.errors import UsageError

EXAMPLES = """
python -m dupmae_ir.collections get beir-scifact
python -m dupmae_ir.collections check beir-14
"""
GET_PURPOSE = """\
Have collections ready in the cache, in BEIR's layout: what is missing is downloaded (and resumed when it was
interrupted), unpacked, converted, and verified: checksums as far as they are published, numbers of documents, queries
and judgements, digests of topics and judgements. A group gets all its members; of its licensed ones, which nobody may
hand out, only those that were put there."""

LIST = "every collection: documents, tests, and what of it is here"
SHOW = "all that is known of a collection: addresses, checksums, measures, where its files go"
CHECK_PURPOSE = """\
Read every byte and every line of collections again and compare them with what they were when they were made and with
what the catalogue expects. The exit status is 1 on a problem; a member of a group that is not here is none."""

_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class _Where:
    """Flags that every verb has."""

    cache: str | None = option(
        None, "cache folder (default: $DUPMAE_IR_CACHE, else ~/.cache/dupmae_ir)", group="where", metavar="FOLDER"
    )
    catalogue: str | None = option(
        None,
        "a TOML file laid over the built-in catalogue (default: $DUPMAE_IR_CATALOGUE); what is made with it is "
        "marked a stand-in and kept apart",
        group="where",
        metavar="FILE",
    )
    json: bool = option(False, "print as JSON", group="output")
    quiet: bool = option(False, "no messages", group="output")


@dataclass(frozen=True, kw_only=True)
class ListConfig(_Where):
    """Settings of ``list``."""


@dataclass(frozen=True, kw_only=True)
class ShowConfig(_Where):
    """Settings of ``show``."""

    name: str = option(
        help=f"a collection, or {LOCAL}FOLDER in BEIR's layout", group="what", metavar="NAME", positional=True
    )


@dataclass(frozen=True, kw_only=True)
class GetConfig(_Where):
    """Settings of ``get``."""

    names: tuple[str, ...] = option(
        help=f"collections or groups ({', '.join(GROUPS)})", group="what", metavar="NAME", positional=True
    )
    mirror: str | None = option(
        None,
        "a server with MIRROR/host/path of every address (default: $DUPMAE_IR_MIRROR)",
        group="where",
        metavar="URL",
    )


@dataclass(frozen=True, kw_only=True)
class CheckConfig(_Where):
    """Settings of ``check``."""

    names: tuple[str, ...] = option(help="collections or groups", group="what", metavar="NAME", positional=True)


def list_all(config: ListConfig) -> int:
    """One row a collection."""
    catalogue, place = _opened(config)
    rows = [_row(collection, place) for collection in catalogue.collections.values()]
    if config.json:
        print(json.dumps(rows, ensure_ascii=False))
        return 0
    print(
        table(
            [[r["name"], _count(r["documents"]), " ".join(r["tests"]), r["state"]] for r in rows],
            ["collection", "documents", "tests", "state"],
        )
    )
    groups = "; ".join(f"{name} ({len(expand(name, config.catalogue))})" for name in GROUPS)
    say(textwrap.fill(f"groups: {groups}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False), config.quiet)
    say(f"any other folder in BEIR's layout is {LOCAL}FOLDER", config.quiet)
    mark = f"stand-ins of {catalogue.overlay} " if catalogue.stand_in else ""
    say(f"{mark}in {place.root}", config.quiet)
    return 0


def show(config: ShowConfig) -> int:
    """All that is known of one collection."""
    if config.name in GROUPS:
        raise UsageError(f"{config.name} is a group of {', '.join(GROUPS[config.name])}; show one of them")
    collection = find(config.name, config.catalogue)
    _, place = _opened(config)
    if config.json:
        targets = {role: str(place.download(source)) for role, source in collection.sources.items()}
        told = {**_row(collection, place), **dataclasses.asdict(collection), "downloads": targets}
        print(json.dumps(told, ensure_ascii=False))
        return 0
    print(f"{collection.name}: {collection.title}")
    print("\n".join(_wrapped(name, text) for name, text in _facts(collection, place)))
    return 0


def get_all(config: GetConfig) -> int:
    """Every collection that the names stand for, in order; the first that fails ends it."""
    skipped, made = [], []
    for name, in_group in _named(config.names, config.catalogue):
        try:
            one = get(name, cache=config.cache, mirror=config.mirror, catalogue=config.catalogue, quiet=config.quiet)
        except Licensed as e:
            if not in_group:
                raise
            skipped.append(name)
            say(f"SKIP: {e}", config.quiet)
            continue
        made.append(one)
        if not config.json:
            print(f"{name}: {_summary(one)}\n  in {one.folder}", flush=True)
    if config.json:
        told = [{"folder": str(one.folder), **dataclasses.asdict(one.manifest)} for one in made]
        print(json.dumps(told, ensure_ascii=False))
    if skipped:
        say(f"left out, being licensed: {', '.join(skipped)}", config.quiet)
    return 0


def check_all(config: CheckConfig) -> int:
    """Problems of what is here; what is not here is one only where it was named itself."""
    _, place = _opened(config)
    where = {"cache": config.cache, "catalogue": config.catalogue}
    report: dict[str, dict[str, Any]] = {}
    for name, in_group in _named(config.names, config.catalogue):
        collection = find(name, config.catalogue)
        if name.startswith(LOCAL):
            report[name] = _entry("ok", [], get(name, quiet=config.quiet, **where))
        elif not place.folder(collection).exists():
            why = "licensed" if state(collection, place) == "licensed" else "missing"
            report[name] = _entry(why, [] if in_group else [f"not here; dupmae-ir collections get {name} brings it"])
        else:
            found = problems(collection, place, config.quiet)
            one = ready(name, **where)
            report[name] = _entry("damaged" if found else "ok", found, one)
    bad = any(entry["problems"] for entry in report.values())
    if config.json:
        print(json.dumps(report, ensure_ascii=False))
        return int(bad)
    for name, entry in report.items():
        print(f"{name}: {'; '.join(entry['problems']) or entry['summary']}")
    if damaged := [name for name, entry in report.items() if entry["state"] == "damaged"]:
        say(f"remove {place.folder(find(damaged[0], config.catalogue))} and get it again", config.quiet)
    return int(bad)


def _entry(kind: str, found: list[str], one: Ready | None = None) -> dict[str, Any]:
    summary = f"{_summary(one)}; as it should be" if one else kind
    return {"state": kind, "problems": found, "summary": summary}


def _named(names: tuple[str, ...], catalogue: str | None) -> list[tuple[str, bool]]:
    """(collection, whether it came out of a group), each once. All names are known before anything begins."""
    found: dict[str, bool] = {}
    for name in names:
        for one in expand(name, catalogue):
            found[one] = found.get(one, True) and name in GROUPS
    return list(found.items())


def _opened(config: _Where) -> tuple[Catalogue, Place]:
    catalogue = load(config.catalogue)
    return catalogue, Place.of(catalogue, config.cache)


def _row(collection: Collection, place: Place) -> dict[str, Any]:
    """What ``list`` shows of a collection."""
    return {
        "name": collection.name,
        "title": collection.title,
        "documents": collection.documents,
        "tests": list(collection.tests),
        "state": "ready" if collection.family == "local" else state(collection, place),
        "folder": str(_folder(collection, place)),
    }


def _folder(collection: Collection, place: Place) -> str:
    if collection.family == "local":
        return collection.name.removeprefix(LOCAL)
    return str(place.folder(collection))


def _facts(collection: Collection, place: Place) -> Iterator[tuple[str, str]]:
    """What a person wants to know, in words."""
    row = _row(collection, place)
    yield "state", row["state"]
    yield "folder", row["folder"]
    if collection.documents is not None:
        yield "documents", _count(collection.documents)
    for test in collection.tests.values():
        judged = "answer strings decide" if test.answers else f"{_count(test.judgements)} judgements"
        queries = f"{_count(test.queries)} queries, " if test.queries is not None else ""
        dangling = f", {test.dangling} of them on documents that are not in it" if test.dangling else ""
        yield f"test {test.name}", f"{queries}{judged}{dangling}"
        yield from (("", _meaning(measure)) for measure in test.measures)
    lengths = {"documents": collection.document_length, "queries": collection.query_length}
    kept = ", ".join(f"{kind} {length}" for kind, length in lengths.items() if length)
    if kept:
        yield "word pieces kept", f"{kept} (--document-length, --query-length)"
    if collection.title_separator != "space":
        yield "titles", f"joined with --title-separator {collection.title_separator}"
    if collection.remove_query:
        yield "self-retrieval", "the query's own document does not count (--remove-query)"
    if collection.note:
        yield "note", collection.note
    if collection.licensed:
        yield "licensed", licence_message(collection, place)
    for role, source in collection.sources.items():
        yield role, source.url
        if source.size:
            yield "", f"{source.size / 1e6:,.1f} MB"
        for kind, digest in source.digests.items() or (("no checksum", "is published"),):
            yield "", f"{kind} {digest}"
    if collection.sources:
        root, source = place.root / "downloads", next(iter(collection.sources.values()))
        yield "by hand", f"put each file under its host and path into {root}, the first at {place.download(source)}"


def _meaning(measure: str) -> str:
    """A measure and what trec_eval is told for it, which DPR's answer accuracy has no word for."""
    from dupmae_ir.errors import UnknownName
    from dupmae_ir.measures import parse_measures

    try:
        flags = parse_measures([measure])[0].trec_flags()
    except UnknownName:
        flags = None
    return f"{measure} = trec_eval {flags}" if flags else measure


def _wrapped(name: str, text: str) -> str:
    """Words are wrapped, addresses and paths never broken."""
    lines = textwrap.wrap(text, _WIDTH - 20, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(f"  {(name if i == 0 else '').ljust(18)}{line}" for i, line in enumerate(lines))


def _summary(one: Ready) -> str:
    tests = "; ".join(
        f"{name}: {t['queries']:,} queries, " + ("answer strings" if one.answers else f"{t['judgements']:,} judgements")
        for name, t in one.manifest.tests.items()
    )
    mark = "STAND-IN, " if one.manifest.stand_in else ""
    return f"{mark}{one.manifest.documents:,} documents; {tests}"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _list(argv: list[str]) -> int:
    parser = Parser("collections list", f"Print {LIST}.", "python -m dupmae_ir.collections list --json")
    return list_all(parse(parser, ListConfig, argv))


def _show(argv: list[str]) -> int:
    parser = Parser("collections show", f"Print {SHOW}.", "python -m dupmae_ir.collections show beir-arguana")
    return show(parse(parser, ShowConfig, argv))


def _get(argv: list[str]) -> int:
    examples = (
        "python -m dupmae_ir.collections get beir-scifact msmarco-passage-titled\n"
        "python -m dupmae_ir.collections get beir-14 --cache /data/collections"
    )
    return get_all(parse(Parser("collections get", GET_PURPOSE, examples), GetConfig, argv))


def _check(argv: list[str]) -> int:
    parser = Parser("collections check", CHECK_PURPOSE, "python -m dupmae_ir.collections check beir-scifact")
    return check_all(parse(parser, CheckConfig, argv))


VERBS = {
    "list": (LIST, _list),
    "show": (SHOW, _show),
    "get": ("download, convert and verify collections; run again, it goes on where it was", _get),
    "check": ("read again everything of collections that are here; exit status 1 on a problem", _check),
}


def main(argv: list[str] | None = None) -> int:
    return dispatch("collections", VERBS, EXAMPLES, argv)


if __name__ == "__main__":
    sys.exit(main())
