"""Held-out losses of every method, trained from the same small base model on real text, as plots and a table.

    python benchmarks/pretraining_curves.py --text textbooks.txt.gz --pairs train.jsonl.gz --output runs/curves \\
        [--pictures docs/pictures]

RetroMAE, DupMAE and CoT-MAE are trained on ``--text``. ``--pairs`` are JSON lines of ``query`` and ``positive`` ({id,
title, text}). MASTER and CoT-MoTE are trained on their distinct passages, with a passage's own queries in place of
generated ones and the next passage of its source (id#n+1) in place of a generated continuation. Each run is ``dupmae-ir
pretrain`` with the flags that are printed; finished runs are not repeated, and interrupted ones are resumed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.calibration import add_head
from dupmae_ir.models.names import model_folder

METHODS = ("retromae", "dupmae", "master", "cot-mae", "cot-mote")
OWN = {"cot-mae": ["--unit", "blocks"]}
WITH_QUERIES = ("master", "cot-mote")
"""Methods that read queries too."""


def write_corpus(pairs: Path, path: Path, most: int) -> None:
    """Write at most ``most`` passages of the pairs as JSON lines with ``queries`` and ``next``."""
    passages: dict[str, dict[str, Any]] = {}
    with gzip.open(pairs, "rt", encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            p = row["positive"]
            passage = passages.setdefault(
                p["id"], {"id": p["id"], "title": p["title"], "text": p["text"], "queries": []}
            )
            passage["queries"].append(row["query"])
    for name, row in passages.items():
        source, _, number = name.rpartition("#")
        after = passages.get(f"{source}#{int(number) + 1}") if number.isdigit() else None
        if after is not None:
            row["next"] = after["text"]
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(passages.values())[:most]
    path.write_text(
        "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8"
    )


def make_base(name: str, corpus: Path, folder: Path) -> None:
    """Write the common base model: ``name``, with a masked-LM head calibrated on the corpus if it has none."""
    bare, tokenizer, config = load_model(model_folder(name), need_ot=False)
    texts = [
        json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()[:1000]
    ]
    headless = not hasattr(bare.lm, "cls")
    save_model(
        folder,
        add_head(bare.lm, tokenizer, texts, cls_dim=None) if headless else bare,
        tokenizer,
        config,
    )


def command(method: str, corpus: Path, args: argparse.Namespace) -> list[str]:
    """The command line of one run."""
    words = [
        "--method",
        method,
        "--model",
        str(args.output / "base"),
        "--corpus",
        str(corpus),
        "--output",
        str(args.output / method),
        "--length",
        str(args.length),
        "--batch-size",
        str(args.batch_size),
        "--steps",
        str(args.steps),
        "--accumulate",
        "1",
        "--learning-rate",
        str(args.learning_rate),
        "--held-out",
        "512",
        "--log-steps",
        "10",
        "--eval-steps",
        str(args.eval_steps),
        "--save-steps",
        str(args.eval_steps),
        "--dtype",
        "bfloat16",
    ]
    return [
        *words,
        *OWN.get(method, []),
        *(["--threads", str(args.threads)] if args.threads else []),
    ]


def table(folders: list[Path]) -> str:
    """Markdown table: each loss on held-out text before and after training."""
    lines = [
        "| method | loss | before | after | updates | text tokens read |",
        "|:--|:--|--:|--:|--:|--:|",
    ]
    for folder in folders:
        record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        settings = record["settings"]
        result = record["result"]
        first = result["held_out"]["first"]
        last = result["held_out"]["last"]
        tokens = f"{result['updates'] * settings['batch_size'] * settings['length'] / 1e3:,.0f} k at most"
        for name in first:
            lines.append(
                f"| {folder.name} | {name.removeprefix('loss_')} | {first[name]:.3f} | {last[name]:.3f} | "
                f"{result['updates']:,} | {tokens} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, help="folder for the plots, METHOD.png")
    parser.add_argument(
        "--model", default="minilm", help="base model of all runs (default: minilm)"
    )
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument(
        "--eval-steps",
        type=int,
        default=50,
        help="updates between evaluations on the held-out texts",
    )
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    corpus = args.output / "corpus.jsonl"
    if not corpus.is_file():
        write_corpus(args.pairs, corpus, args.texts)
    if not (args.output / "base" / "config.json").is_file():
        make_base(args.model, corpus, args.output / "base")
    folders = [args.output / method for method in args.methods]
    for method, folder in zip(args.methods, folders, strict=True):
        if not (folder / "training.json").is_file():
            words = command(method, corpus if method in WITH_QUERIES else args.text, args)
            print("dupmae-ir pretrain " + " ".join(words), flush=True)
            subprocess.run([sys.executable, "-m", "dupmae_ir.pretrain", *words], check=True)
        if args.pictures:
            args.pictures.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "pretraining" / "losses.png", args.pictures / f"{method}.png")
    print(table(folders))


if __name__ == "__main__":
    main()
