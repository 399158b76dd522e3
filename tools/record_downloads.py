"""Put the recorded digests of downloaded checkpoints into eval/models.toml, or say which are still unknown.

    python tools/record_downloads.py                 # what is pinned, recorded and unknown
    python tools/record_downloads.py --write         # add the recorded digests as `sha256` of their models

The first download of a checkpoint records the sha256 of each file in the cache; later downloads must match it. A digest
in models.toml holds on every machine. A digest that models.toml already states is never replaced. `revision` of a
model, a commit of the model hub instead of the branch main, is set by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from dupmae_ir.config import read_toml
from dupmae_ir.eval.regressions.cases import DIGESTS, MODELS, Model, read_models
from dupmae_ir.io.publishing import read_json_object
from dupmae_ir.io.transfer import cache_folder

FOLDER = Path(__file__).resolve().parents[1] / "eval"


def recorded(model: Model, cache: Path) -> dict[str, str]:
    """File -> sha256 of the first download on this machine."""
    record = read_json_object(cache / "models" / f"{model.name}.{DIGESTS}")
    return {name: record[url] for name, url in model.addresses.items() if url in record}


def status_lines(models: Mapping[str, Model], cache: Path) -> list[str]:
    """A line for each released checkpoint: its revision, and the digests that are pinned, recorded and unknown."""
    lines = []
    for model in (m for m in models.values() if m.files):
        here = recorded(model, cache).keys() - model.sha256.keys()
        unknown = len(model.files) - len(model.sha256) - len(here)
        counts = f"{len(model.sha256)} pinned, {len(here)} recorded here, {unknown} unknown"
        lines.append(
            f"{model.name}: revision {model.revision}; sha256 of {len(model.files)} files: {counts}"
        )
    return lines


def with_digests(text: str, models: Mapping[str, Model], cache: Path) -> str:
    """models.toml with the recorded digests of the models that state none."""
    for model in models.values():
        if model.sha256 or not model.files:
            continue
        digests = recorded(model, cache)
        if digests:
            entry = ", ".join(f'"{name}" = "{digest}"' for name, digest in digests.items())
            head, start, rest = text.partition(f"[{model.name}]\n")
            line, end, after = rest.partition("\nfiles = ")
            files, newline, more = after.partition("\n")
            text = f"{head}{start}{line}{end}{files}{newline}sha256 = {{{entry}}}\n{more}"
    return text


def main(argv: list[str] | None = None) -> int:
    """Print the status of every checkpoint, or write what was recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", type=Path, default=FOLDER, help="folder of models.toml")
    parser.add_argument(
        "--cache", type=Path, default=cache_folder(), help="folder of the downloads"
    )
    parser.add_argument(
        "--write", action="store_true", help="add the recorded digests to models.toml"
    )
    options = parser.parse_args(argv)
    path = options.recipes / MODELS
    models = read_models(read_toml(path), options.recipes)
    if options.write:
        path.write_text(
            with_digests(path.read_text(encoding="utf-8"), models, options.cache), encoding="utf-8"
        )
        models = read_models(read_toml(path), options.recipes)
    print("\n".join(status_lines(models, options.cache)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
