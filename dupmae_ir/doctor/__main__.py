"""``python -m dupmae_ir.doctor``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.doctor.config import DoctorConfig


def verdict(config: DoctorConfig, result: dict[str, Any]) -> str:
    """The last line."""
    problems = sum(not finding["ok"] for finding in result["findings"])
    if config.quiet:
        return ""
    if not problems:
        return "\nAll is well."
    count = f"{problems} problem{'s' * (problems > 1)}"
    return f"\n{count}; everything else works (with --model FOLDER)." if result["ok"] else f"\n{count}."


def status(config: DoctorConfig, result: dict[str, Any]) -> int:  # noqa: ARG001
    """1 if something essential is broken."""
    return 0 if result["ok"] else 1


main = Command("doctor", DoctorConfig, "dupmae_ir.doctor.run:run", show=verdict, status=status)

if __name__ == "__main__":
    main.exit()
