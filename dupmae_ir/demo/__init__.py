"""The demonstration: the embedded collection encoded, searched and evaluated."""
