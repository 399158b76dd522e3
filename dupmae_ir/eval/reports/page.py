"""Self-contained HTML pages, from the jinja2 templates next to this module."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dupmae_ir import __version__
from dupmae_ir.console import visible

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, folder: Path = TEMPLATES, **values: Any) -> str:
    """The page of a template in ``folder``, without a final newline. Text is escaped, :class:`Markup` is not."""
    page = _environment(folder).get_template(template).render(version=__version__, **values)
    return "\n".join(line.rstrip() for line in page.strip().splitlines())


@cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )


def _visible(value: Any) -> Any:
    """Control characters made visible, in text and in markup."""
    if isinstance(value, Markup):
        return Markup(visible(value))
    return visible(value) if isinstance(value, str) else value
