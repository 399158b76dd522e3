"""``python -m dupmae_ir.finetune.score``: see ``--help``."""

from __future__ import annotations

import sys

from dupmae_ir.finetune.score.run import main

if __name__ == "__main__":
    sys.exit(main())
