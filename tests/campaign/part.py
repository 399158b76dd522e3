"""One part of the campaign in this process: ``python -m tests.campaign.part NAME SECONDS SEED RECORDS``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.campaign import PARTS
from tests.campaign.records import Records

if __name__ == "__main__":
    name, seconds, seed, path = sys.argv[1:]
    PARTS[name]().run(float(seconds), int(seed), Records(name, Path(path)))
