"""``dupmae-ir bench``: how fast this machine is, beside recorded machines."""
