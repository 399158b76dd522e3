"""``--golden DIR``: the folder of reference values to check against."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "golden" / "official"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden", default=str(SHARED), help="folder of NAME.json and NAME.safetensors cases"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        folder = Path(metafunc.config.getoption("--golden", default=str(SHARED)))
        cases = sorted(
            p.with_suffix("")
            for p in folder.glob("*.json")
            if p.with_suffix(".safetensors").is_file()
        )
        nothing = pytest.param(
            None, marks=pytest.mark.skip(reason=f"no reference values in {folder}")
        )
        metafunc.parametrize("case", cases or [nothing], ids=lambda c: c.name if c else "none")
