"""The jobs that make an index folder, whose ``meta.json`` is also the record of what made it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.format.manifest import META, Meta, check_target, read_meta
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import combined_digest

SUMMARY = ("documents", "empty_documents", "parts", "dim", "scale", "scale_source", "postings", "clipped", "digest")


def summary(meta: Meta) -> dict[str, Any]:
    """The part of a meta that a command reports."""
    return {key: meta.get(key) for key in SUMMARY} | ({"sources": meta["sources"]} if "sources" in meta else {})


class IndexJob(Job):
    """A job whose target is an index folder; :mod:`dupmae_ir.index.changes.builder` writes its ``meta.json``."""

    ADVICE = "Name another `index`, or pass `overwrite`"

    def __enter__(self) -> Self:
        check_target(self.target)
        super().__enter__()
        return self

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:
        """Nothing: the builder has written ``meta.json``, which :meth:`recorded` reads."""

    def check_replaceable(self) -> None:
        """Any index folder may be replaced; :meth:`__enter__` refuses everything else."""

    def meta(self) -> Meta:
        """The meta of the existing index. Raises :class:`UsageError` where it does not record settings."""
        meta = read_meta(self.target)
        if not isinstance(meta.get("settings"), dict) or not isinstance(meta.get("inputs"), list):
            raise UsageError(f"{self.target / META}: not written by dupmae-ir encode; name another `index`")
        return meta


class EncodeJob(IndexJob):
    """``dupmae-ir encode``. An index that encode.merge made from the same settings and inputs is also its output."""

    START_OVER = "pass `restart`"

    def recorded(self) -> dict[str, Any]:
        """The record in ``meta.json``. Where representation files lie is not compared.

        Raises :class:`IndexMismatch` for an index that was changed since it was encoded.
        """
        meta = self.meta()
        if meta["generation"]:
            raise IndexMismatch(
                f"{self.target} was changed since it was encoded, by {meta['changed_by']}; bring it up to date with "
                f"dupmae-ir index sync, or pass `overwrite`"
            )
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": {**meta["settings"], "jsonl": self.settings["jsonl"]},
            "inputs": {"corpus": combined_digest([i["sha256"] for i in meta["inputs"]])},
            "result": summary(meta),
        }


class MergeJob(IndexJob):
    """``dupmae-ir encode.merge``."""

    def recorded(self) -> dict[str, Any]:
        """The record in ``meta.json``; an index that was not merged has no shards."""
        meta = self.meta()
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": {},
            "inputs": {"shards": shards_digest([s["digest"] for s in meta.get("merged_from") or []])},
            "result": summary(meta),
        }


def shards_digest(digests: list[str]) -> str:
    """One digest for the shards of an index, in their order."""
    return combined_digest(["shards", *digests])
