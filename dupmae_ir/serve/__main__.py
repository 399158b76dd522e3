"""``python -m dupmae_ir.serve``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.serve.config import ServeConfig

PURPOSE = """
Serve indexes over HTTP: a REST API described at /openapi.json, a page that shows why each hit was found at /, health at
/health and /ready, metrics at /metrics. Queries that arrive together are encoded together. A new generation of an index
is taken in without a pause. Only this machine can connect unless --host names another address, which needs a token.
"""
EXAMPLES = """
dupmae-ir serve --index my-index
dupmae-ir serve --index docs=indexes/docs old=indexes/docs-2025 --port 8080
DUPMAE_IR_TOKEN=$(cat token) dupmae-ir serve --index my-index --host 0.0.0.0
dupmae-ir serve --index my-index --mcp
"""


def summarize(_: ServeConfig, result: dict[str, Any]) -> str:
    """One line at the end."""
    return f"stopped after {result['seconds']:,} s: {result['lists']:,} lists, {result['certified']:,} certified exact"


main = Command(
    "serve",
    PURPOSE,
    EXAMPLES,
    ServeConfig,
    "dupmae_ir.serve.run:run",
    summarize=summarize,
    packages=("fastapi", "uvicorn"),
    extra="serve",
)

if __name__ == "__main__":
    main.exit()
