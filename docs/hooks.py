"""mkdocs hook: Sphinx roles in docstrings (``:class:`~a.b.C```) become plain code in the Python reference."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:class|func|mod|meth|data|attr|exc|obj):<code>(~?)([^<]*)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """The page's HTML with each role replaced by its target; ``~`` keeps the last component only."""
    return ROLE.sub(lambda m: f"<code>{m[2].rpartition('.')[2] if m[1] else m[2]}</code>", html)
