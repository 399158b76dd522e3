"""What the studies share: a command line from a dataclass of settings, and pictures by matplotlib."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dupmae_ir.command import help_text
from dupmae_ir.config import parse, with_flags
from dupmae_ir.console import Parser, guarded, say, show
from dupmae_ir.device import need_packages
from dupmae_ir.errors import UsageError

PICTURES = (".svg", ".png", ".pdf")


def study(
    script: str,
    config: type,
    work: Callable[[Any], Any],
    text: Callable[[Any, Any], str],
    as_json: Callable[[Any], Any],
    note: Callable[[Any], str] = lambda config: (
        f"picture: {config.output}" if config.output else ""
    ),
) -> Callable[[list[str] | None], int]:
    """``main(argv)`` of a script: parse the settings, run ``work``, print its result. Returns the exit status.

    ``text(config, result)`` is printed, or with ``--json`` the values of ``as_json(result)``; ``note(config)`` names
    the written file on standard error.
    """
    prog = f"eval/studies/{script}.py"

    def run(argv: list[str] | None) -> None:
        parser = Parser(script, *help_text(config))
        parser.prog = prog
        settings = parse(parser, config, argv)
        result = work(settings)
        if line := note(settings):
            say(line, settings.quiet)
        if (
            printed := json.dumps(as_json(result), ensure_ascii=False)
            if settings.json
            else text(settings, result)
        ):
            show(printed)

    return lambda argv=None: guarded(
        lambda: run(argv), prog, translate=lambda message: with_flags(message, config)
    )


def check_picture(output: str | None) -> None:
    """Raise :class:`UsageError` for a name that is no picture's, :class:`EnvironmentProblem` without matplotlib."""
    if output:
        if Path(output).suffix.lower() not in PICTURES:
            raise UsageError(f"`output` {output}: name a file that ends in {', '.join(PICTURES)}")
        need_packages("a picture", ["matplotlib"], "charts")


def figure(panels: int) -> tuple[Any, list[Any]]:
    """A matplotlib figure without a window, with ``panels`` axes in a row."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(4.5 * panels, 4), layout="constrained")
    return made, list(made.subplots(1, panels, squeeze=False)[0])


def save(made: Any, output: str) -> None:
    """Write the figure; text in SVG stays text."""
    import matplotlib

    Path(output).parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dupmae_ir"}):
        made.savefig(output, metadata={"Date": None} if output.lower().endswith(".svg") else None)
