"""The front door in a checkout: ``python eval ...`` is ``python -m dupmae_ir.eval ...``."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
runpy.run_module("dupmae_ir.eval", run_name="__main__", alter_sys=True)
