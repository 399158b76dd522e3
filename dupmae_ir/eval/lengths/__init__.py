"""Lengths of queries and passages in words (CoT-MoTE, Figure 1; counts as in MASTER, Table 1)."""
