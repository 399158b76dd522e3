"""Case studies: one query, three lists (DupMAE, appendix A)."""
