"""Exporting models to other projects' formats: ``python -m dupmae_ir.export``."""
