"""``python -m dupmae_ir.eval``: see ``--help``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dupmae_ir.command import Command
from dupmae_ir.eval.config import EvalConfig
from dupmae_ir.measures import FAMILIES

if TYPE_CHECKING:
    from dupmae_ir.eval.run import Evaluated


def measures() -> str:
    """The table of measures on the help page."""
    cut = {
        name: "[@k]" if family.trec else "@k"
        for name, family in FAMILIES.items()
        if family.trec_cut
    }
    names = {name + cut.get(name, ""): family for name, family in FAMILIES.items()}
    width = max(map(len, names))
    return "measures (k is a rank; (rel=N) sets the relevance level):\n" + "\n".join(
        f"  {name.ljust(width)}  {family.meaning}" for name, family in names.items()
    )


def show(config: EvalConfig, result: Evaluated) -> str:
    """The text for standard output."""
    return result.text(config)


main = Command(
    "eval", EvalConfig, "dupmae_ir.eval.run:run", show=show, as_json=show, epilog=measures()
)

if __name__ == "__main__":
    main.exit()
