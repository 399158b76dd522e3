"""The standing campaign: damage on purpose, counted. ``python -m tests.campaign --seconds 300``."""
