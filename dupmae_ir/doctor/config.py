"""Options of ``dupmae-ir doctor``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(OutputOptions):
    """Options of ``dupmae-ir doctor``."""
