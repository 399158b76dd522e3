"""Fusion of run files."""

from __future__ import annotations

from typing import Any

from dupmae_ir.io.runs import read_run, write_run
from dupmae_ir.search.fusion.config import FusionConfig
from dupmae_ir.search.fusion.methods import fuse, rrf


def run(config: FusionConfig) -> dict[str, Any]:
    """Read the runs, fuse them, write ``config.output``. A query that a run lacks has an empty list there."""
    runs = [read_run(path) for path in config.runs]
    qids = list(dict.fromkeys(qid for r in runs for qid in r))
    lists = {qid: [list(r.get(qid, [])) for r in runs] for qid in qids}
    if config.method == "rrf":
        fused = {qid: rrf(found, config.rrf_k)[: config.hits] for qid, found in lists.items()}
    else:
        fused = {qid: fuse(config, first, second, config.hits) for qid, (first, second) in lists.items()}
    write_run(config.output, fused, config.tag, config.format)
    incomplete = sum(not all(found) for found in lists.values())
    return {"queries": len(qids), "queries_missing_in_a_run": incomplete, "output": config.output}
