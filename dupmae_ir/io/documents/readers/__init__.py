"""The formats of documents: one module for each family, behind the registry in :mod:`.registry`."""
