"""Search engines that hold an index beside the folder: PostgreSQL with pgvector, Qdrant, Milvus, OpenSearch, Vespa.

    dupmae-ir backend load --index I --to postgresql://host/db
    dupmae-ir search --index I --backend postgresql://host/db --query "..."

One module per engine implements :class:`~dupmae_ir.backend.protocol.Backend`: it stores rows and returns the best rows
of one part of the score, or of the sum where the engine can compute it. :mod:`~dupmae_ir.backend.load` compares an
index with what an engine holds and pushes the difference. :mod:`dupmae_ir.search.backend_parts` turns the lists of an
engine into certified answers.

:mod:`~dupmae_ir.backend.files` writes an index for an engine's own tools.

Client packages are imported when an engine is opened.
"""
