"""Search servers that hold a copy of an index: PostgreSQL with pgvector, Qdrant, Milvus.

    dupmae-ir servers load --index I --to postgresql://host/db
    dupmae-ir search --index I --server postgresql://host/db --query "..."

One module per server implements :class:`~dupmae_ir.servers.protocol.ServerTable`: it stores rows and returns the best
rows of one part of the score, or of the sum where the server can compute it. :mod:`~dupmae_ir.servers.load` compares an
index with what a server holds and pushes the difference. :mod:`dupmae_ir.search.candidates.server` turns the lists of a
server into certified answers.

Client packages are imported when a server is opened.
"""
