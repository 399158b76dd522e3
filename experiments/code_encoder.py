"""The measurements of experiments/code-encoder.md.

    python experiments/code_encoder.py measure direct --model runs/code-encoder/direct/stage2 \
        --sets runs/code-pairs --data DATA --output runs/code-encoder/records
    python experiments/code_encoder.py compare runs/code-encoder/records
    python experiments/code_encoder.py average --model runs/code-encoder/retromae/stage2 --output runs/code-encoder/half

``measure`` writes ``OUTPUT/VARIANT/COLLECTION.json`` with nDCG@10 of each query by vectors alone and by hybrid search.
Collections that have a record already are left out, so the same command continues after an interruption. Search is
exhaustive, by the float32 sums of both parts (DupMAE Eq. 12). ``compare`` prints the table of means, and the tests of
each variant against ``control``. The 69 questions are counted by benchmarks/folder_questions.py, with ``--model``.
``average`` writes the model half-way between the embedded model and one that was trained from it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sentences_and_titles import CLASSIC, DEMO, Collection, write_demo

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.names import lexicon_path, model_folder

CONTROL = "control"
DECIDES = "test"
"""The collection by which the rule chooses."""
COLLECTIONS = (DECIDES, DEMO, *CLASSIC)
MODES = ("vectors", "hybrid")
MEASURE = "nDCG@10"


def measure(folder: Path, model: Path | None) -> dict[str, Any]:
    """Mode -> query id -> nDCG@10, for a collection in BEIR's layout."""
    collection = Collection(folder, vectors=folder)  # none are kept: each passage has one vector
    parts = collection.parts(load_encoder(model, dtype="mixed"))
    record = {}
    for mode, scores in (("vectors", parts.dense), ("hybrid", parts.dense + parts.words)):
        values = collection.scores(scores)[MEASURE]
        record[mode] = {
            topic.qid: value for topic, value in zip(collection.topics, values, strict=True)
        }
    return record


def folders(sets: Path, data: Path, output: Path) -> Mapping[str, Path]:
    """The folder of each collection; that of the demo is written below ``output``."""
    demo = output / DEMO
    write_demo(demo)
    return {DECIDES: sets / "test", DEMO: demo, **{name: data / name for name in CLASSIC}}


def measure_all(args: argparse.Namespace) -> None:
    """Measure the collections that have no record of the variant yet."""
    records = args.output / args.variant
    records.mkdir(parents=True, exist_ok=True)
    for name, folder in folders(args.sets, args.data, args.output).items():
        path = records / f"{name}.json"
        if path.is_file():
            continue
        print(f"{args.variant}, {name}: started", flush=True)
        record = measure(folder, args.model)
        with atomic_write(path) as f:
            json.dump(record, f)
    print(f"{args.variant}: complete", flush=True)


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Variant -> collection -> record of :func:`measure`.

    Raises :class:`InputError` for an incomplete variant, and if there is no control.
    """
    variants: dict[str, dict[str, Any]] = {}
    for first in sorted(folder.glob(f"*/{DECIDES}.json")):
        variant = first.parent
        records = {}
        for name in COLLECTIONS:
            path = variant / f"{name}.json"
            if not path.is_file():
                raise InputError(f"{path}: is missing; run `measure {variant.name}` to its end")
            records[name] = json.loads(path.read_text(encoding="utf-8"))
        variants[variant.name] = records
    if CONTROL not in variants:
        raise InputError(
            f"{folder}: has no records of the variant {CONTROL}; run `measure {CONTROL}`"
        )
    return variants


def mean(values: Mapping[str, float]) -> float:
    return float(np.mean(list(values.values())))


def p_value(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Of a paired t-test over queries."""
    queries = sorted(theirs)
    found = stats.ttest_rel(
        [ours[query] for query in queries], [theirs[query] for query in queries]
    )
    return float(found.pvalue)


def compare(args: argparse.Namespace) -> None:
    """Print the means of all variants, and the tests against the control by hybrid search on ``test``."""
    variants = read_records(args.records)
    for mode in MODES:
        print(mode)
        for variant, records in variants.items():
            cells = [f"{name} {mean(records[name][mode]):.4f}" for name in COLLECTIONS]
            print(f"  {variant:10} {'  '.join(cells)}")
    control = variants.pop(CONTROL)[DECIDES]["hybrid"]
    p_values = {}
    for variant, records in variants.items():
        p_values[variant] = p_value(records[DECIDES]["hybrid"], control)
    # Holm: the smallest is multiplied by the number of tests, the next by one less.
    corrected = 0.0
    for number, variant in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        corrected = max(corrected, min(1.0, (len(p_values) - number) * p_values[variant]))
        difference = mean(variants[variant][DECIDES]["hybrid"]) - mean(control)
        print(f"{variant} against control on {DECIDES}: {difference:+.4f}, p {corrected:.2g}")


def _parts(retriever: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The encoder without a masked-LM head, which pre-training adds, and the projection."""
    return retriever.lm.base_model, retriever.projection


def average(args: argparse.Namespace) -> None:
    """Write the model half-way between the embedded model and one that was trained from it."""
    start = model_folder(None)
    mean_model, tokenizer, config = load_model(start, need_ot=False)
    trained, _, _ = load_model(args.model, need_ot=False)
    with torch.no_grad():
        for part, trained_part in zip(_parts(mean_model), _parts(trained), strict=True):
            weights = trained_part.state_dict()
            for name, weight in part.state_dict().items():
                weight.lerp_(weights[name], 0.5)
    lexicon = lexicon_path(start, config.embedded_lexicon)
    save_model(args.output, mean_model, tokenizer, config, lexicon=lexicon)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("variant", help="its name in the records: control, direct, retromae")
    measuring.add_argument(
        "--model", type=Path, help="model folder; the embedded model if left out"
    )
    measuring.add_argument("--sets", type=Path, required=True, help="made by code_pairs.py")
    measuring.add_argument("--data", type=Path, required=True, help="classic collections")
    measuring.add_argument("--output", type=Path, required=True)
    measuring.set_defaults(work=measure_all)
    comparing = commands.add_parser("compare")
    comparing.add_argument("records", type=Path)
    comparing.set_defaults(work=compare)
    averaging = commands.add_parser("average")
    averaging.add_argument(
        "--model", type=Path, required=True, help="trained from the embedded one"
    )
    averaging.add_argument("--output", type=Path, required=True)
    averaging.set_defaults(work=average)
    args = parser.parse_args(argv)
    return guarded(lambda: args.work(args), "code_encoder.py")


if __name__ == "__main__":
    raise SystemExit(main())
