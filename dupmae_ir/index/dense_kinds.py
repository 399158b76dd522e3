"""How the vectors of an index folder are stored for a search."""

FLAT = "flat"
"""The dense index that every index folder with vectors has."""
ROTATED = "rotated"
"""The codes that exclude most of its vectors from a search: :mod:`dupmae_ir.index.format.rotated`."""
