"""Fusion of ranked lists: reciprocal ranks, interpolation, and Pyserini's hybrid arithmetic."""
