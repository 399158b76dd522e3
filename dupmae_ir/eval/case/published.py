"""The four queries of DupMAE's case study (ACL 2023, Tables 5 and 6), with the ranks that the paper prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dupmae_ir.config import read_toml

DATA = Path(__file__).with_name("published.toml")


@dataclass(frozen=True)
class Published:
    """One query. ``cls`` and ``ot``: printed rank of the answer; None: missed within the first 10."""

    qid: str  #: of MS MARCO's passage dev set
    text: str
    answer: str  #: docid of the relevant passage
    source: str
    cls: int | None = None
    ot: int | None = None

    @property
    def sentence(self) -> str:
        """What the paper prints."""
        ranks = {"[CLS]": self.cls, "OT": self.ot}
        words = (f"{name} rank {rank}" if rank else f"{name} misses" for name, rank in ranks.items())
        return f"{self.source}: {', '.join(words)}"


def published() -> dict[str, Published]:
    """Query id -> query, in the order of the tables."""
    return {row["qid"]: Published(**row) for row in read_toml(DATA)["query"]}
