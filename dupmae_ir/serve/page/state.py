"""The state of the page: what its address says. Every state is a link, and a link gives the state back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from dupmae_ir.search.config import MODES

CHOICES = (5, 10, 20, 50)
"""Numbers of hits that the page offers."""


@dataclass(frozen=True)
class State:
    """``q``: the query. ``index``, ``compare``: names of indexes, empty for the default and for none. ``mode``: of the
    middle list. ``hits``: per list. ``filter``: a condition on metadata, empty for none."""

    q: str = ""
    index: str = ""
    compare: str = ""
    mode: str = ""
    hits: int = 10
    filter: str = ""

    @classmethod
    def read(cls, parameters: Mapping[str, str], most_hits: int) -> State:
        """The state of an address; values that mean nothing are the defaults."""
        hits = parameters.get("hits", "")
        number = int(hits) if hits.isascii() and hits.isdigit() and len(hits) < 6 else cls.hits
        mode = parameters.get("mode", "")
        return cls(
            q=parameters.get("q", ""),
            index=parameters.get("index", ""),
            compare=parameters.get("compare", ""),
            mode=mode if mode in MODES else "",
            hits=min(max(number, 1), most_hits),
            filter=parameters.get("filter", "").strip(),
        )

    def link(self, **changes: str | int) -> str:
        """The address of this state with some values changed."""
        changed = dataclasses.replace(self, **changes)  # type: ignore[arg-type]
        given = {f.name: value for f in dataclasses.fields(changed) if (value := getattr(changed, f.name)) != f.default}
        return "/?" + urlencode(given) if given else "/"
