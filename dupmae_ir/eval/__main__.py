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
    meanings = {}
    for name, family in FAMILIES.items():
        cutoff = ""
        if family.trec_cut:
            # trec_eval also has this measure without a cutoff.
            cutoff = "[@k]" if family.trec else "@k"
        meanings[name + cutoff] = family.meaning
    width = max(map(len, meanings))
    lines = ["measures (k is a rank; (rel=N) sets the relevance level):"]
    lines += [f"  {name.ljust(width)}  {meaning}" for name, meaning in meanings.items()]
    lines.append(
        "and what else ir_measures computes with the libraries that are installed, such as ERR@20"
    )
    return "\n".join(lines)


def show(config: EvalConfig, result: Evaluated) -> str:
    """The text for standard output."""
    return result.text(config)


main = Command(
    "eval", EvalConfig, "dupmae_ir.eval.run:run", show=show, as_json=show, epilog=measures()
)

if __name__ == "__main__":
    main.exit()
