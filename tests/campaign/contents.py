"""What two runs of a command must have made alike: every file, those of Lucene without its random ids
(:mod:`~tests.campaign.lucene_files`), records without moments, durations and the names of folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dupmae_ir.finetune.stages import STATE
from dupmae_ir.index.format.manifest import META, OWN_DIGEST, manifest_digest
from dupmae_ir.io.jobs import record_path
from dupmae_ir.io.publishing import sha256_file
from tests.campaign.lucene_files import comparable, is_lucene

FLEETING = ("seconds", "status", "per_second", "created", "runtime", "resumed")
"""Ends of the keys of records that describe the run and not what it made."""


def contents(target: Path, out: Path) -> dict[str, Any]:
    """File -> what must be equal, hidden files inside the target included; and the files left beside the target."""
    files = (
        [p for p in target.rglob("*") if p.is_file()]
        if target.is_dir()
        else [target, record_path(target)]
    )
    found: dict[str, Any] = {}
    for path in filter(Path.is_file, sorted(files)):
        if ".tfevents" in path.name or path.suffix in (".png", ".svg"):
            continue  # times are part of them, and a resumed run begins another file of events
        found[str(path.relative_to(target.parent))] = _content(path, out)
    left = sorted(p.name for p in target.parent.iterdir() if p.name.startswith(f".{target.name}."))
    return {**found, "left behind": left}


def _content(path: Path, out: Path) -> Any:
    if is_lucene(path.parent) and path.name in (lucene := comparable(path.parent)):
        return lucene[path.name]
    if path.suffix == ".json":
        return _lasting(_checked(path), out)
    if path.suffix == ".jsonl" and path.name == "log.jsonl":
        return [_lasting(json.loads(line), out) for line in path.read_text().splitlines()]
    return path.read_bytes().replace(str(out).encode(), b"OUT")


def _checked(path: Path) -> Any:
    """A JSON file; of an index's record, whether its digests are those of the files, which are compared themselves."""
    record = json.loads(path.read_text())
    if path.name == META and OWN_DIGEST in record:
        record[OWN_DIGEST] = record[OWN_DIGEST] == manifest_digest(record)
        for segment in record["segments"]:
            folder = path.parent / segment["path"]
            segment["files"] = {
                n: sha256_file(folder / n) == r["sha256"] for n, r in segment["files"].items()
            }
    if path.name == STATE:
        for step in record.values():
            del step["digest"]  # of the command's words, the folder's name among them
    return record


def _lasting(value: Any, out: Path) -> Any:
    if isinstance(value, dict):
        return {
            k: _lasting(v, out)
            for k, v in value.items()
            if not k.endswith(FLEETING) and k != "work"
        }
    if isinstance(value, list):
        return [_lasting(v, out) for v in value]
    return value.replace(str(out), "OUT") if isinstance(value, str) else value
