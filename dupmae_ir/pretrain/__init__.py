"""Pre-training: masked auto-encoding of a corpus, with one objective per method."""
