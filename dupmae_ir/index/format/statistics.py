"""Query weights that depend on the collection: an encoder with the statistics of an index."""

from __future__ import annotations

from dupmae_ir.index.index import Index
from dupmae_ir.types import CollectionStatistics, Encoder, LexicalEncoder


def for_index(encoder: Encoder, index: Index) -> Encoder:
    """``encoder`` with the document frequencies of ``index`` if its OT part is lexical; otherwise itself.

    Deleted documents are not counted.
    """
    if encoder.settings.ot != "lexical" or not index.has_ot or not isinstance(encoder, LexicalEncoder):
        return encoder
    return encoder.for_collection(CollectionStatistics(index.documents, index.forward.frequencies))
