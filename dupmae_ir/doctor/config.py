"""Options of ``dupmae-ir doctor``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(OutputOptions):
    """Check this machine: Python, packages, Java, Lucene, faiss, torch, trec_eval, the embedded model. Each line is OK
        or
    PROBLEM with the command that fixes it; with --quiet, problems only. The exit status is 1 if something is broken
    that encoding or searching requires.

    Examples:
        python -m dupmae_ir.doctor
    """
