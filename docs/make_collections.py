"""Write the table of all collections into docs/collections.md, from the catalogue.

With --check, exit 1 when the page is out of date.
"""

from __future__ import annotations

from pages import ROOT, write_or_check

from dupmae_ir.collections.catalogue import TestCollection, load
from dupmae_ir.tables import markdown

PAGE = ROOT / "docs" / "collections.md"
HEADER = [
    "collection",
    "documents",
    "test",
    "judged queries",
    "judgements",
    "measures",
    "corpus verified by",
]


CORPUS = ("archive", "collection", "corpus")
"""Names that the catalogue gives to the file with the documents."""
DEMO = ["demo", "about 5,000", "test", "about 280", "about 540", "nDCG@10, RR@10, R@100", "-"]
"""Made from the standard library of the Python that runs, so its counts differ between versions."""


def checksum(collection: TestCollection) -> str:
    """The kind of checksum of the corpus, or why there is none."""
    if collection.licensed:
        return "licensed"
    (corpus,) = (source for role, source in collection.sources.items() if role in CORPUS)
    return next(iter(corpus.digests), "none published")


def catalogue() -> str:
    """Markdown: one row per test of each collection."""
    rows = []
    for collection in load().collections.values():
        if collection.family == "demo":
            rows.append(DEMO)
            continue
        first = [collection.name, f"{collection.documents:,}"]
        for test in collection.tests.values():
            judgements = "answer strings" if test.answers else f"{test.judgements:,}"
            last = checksum(collection) if first[0] else ""
            rows.append(
                [*first, test.name, f"{test.queries:,}", judgements, ", ".join(test.measures), last]
            )
            first = ["", ""]
    return markdown(HEADER, rows, 1)


if __name__ == "__main__":
    write_or_check([PAGE], {"catalogue": catalogue}, "dupmae_ir/collections/catalogue.toml")
