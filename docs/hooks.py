"""mkdocs hooks: the home page is README.md, and Sphinx roles in docstrings (``:class:`~a.b.C```) become plain code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[1] / "README.md"
ROLE = re.compile(r":(?:class|func|mod|meth|data|attr|exc|obj):<code>(~?)([^<]*)</code>")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The home page's text is the README's, with links as seen from docs/."""
    if page.file.src_uri != "index.md":
        return markdown
    text = README.read_text(encoding="utf-8").replace("](docs/", "](")
    return text.replace("](CONTRIBUTING.md", "](contributing.md")


def on_page_content(html: str, **_: Any) -> str:
    """The page's HTML with each role replaced by its target; ``~`` keeps the last component only."""
    return ROLE.sub(_role_code, html)


def _role_code(role: re.Match[str]) -> str:
    tilde, target = role.groups()
    if tilde:
        target = target.rpartition(".")[2]
    return f"<code>{target}</code>"
