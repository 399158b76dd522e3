"""Dense, impact and exact hybrid search of an index, and fusion of lists."""
