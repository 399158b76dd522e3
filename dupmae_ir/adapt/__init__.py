"""Adapting a model to a collection without labels (DupMAE's domain adaptation, DupMAE-dagger)."""
