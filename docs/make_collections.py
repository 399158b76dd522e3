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
    # Exactly one of the names occurs in a collection; anything else is a fault of the catalogue.
    (corpus,) = (source for role, source in collection.sources.items() if role in CORPUS)
    return next(iter(corpus.digests), "none published")


def catalogue() -> str:
    """Markdown: one row per test of each collection."""
    rows = []
    for collection in load().collections.values():
        if collection.family == "demo":
            rows.append(DEMO)
            continue
        # Only the first row of a collection has its name, its size and its checksum.
        name = collection.name
        size = f"{collection.documents:,}"
        verified_by = checksum(collection)
        for test in collection.tests.values():
            judgements = f"{test.judgements:,}"
            if test.answers:
                judgements = "answer strings"
            measures = ", ".join(test.measures)
            rows.append(
                [name, size, test.name, f"{test.queries:,}", judgements, measures, verified_by]
            )
            name = ""
            size = ""
            verified_by = ""
    return markdown(HEADER, rows, 1)


if __name__ == "__main__":
    write_or_check([PAGE], {"catalogue": catalogue}, "dupmae_ir/collections/catalogue.toml")
