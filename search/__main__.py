"""The front door in a checkout: ``python search ...`` is ``python -m dupmae_ir.search ...``."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
runpy.run_module("dupmae_ir.search", run_name="__main__", alter_sys=True)
