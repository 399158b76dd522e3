"""Pre-training: masked auto-encoding of a corpus, one objective per method."""
