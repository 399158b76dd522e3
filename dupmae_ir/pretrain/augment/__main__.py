"""``python -m dupmae_ir.pretrain.augment``: see ``--help``."""

from __future__ import annotations

import sys

from dupmae_ir.pretrain.augment.run import main

if __name__ == "__main__":
    sys.exit(main())
