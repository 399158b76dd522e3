"""Make the lexical model: granite-embedding-30m-english as [CLS], BM25-like weights of stems as OT part.

    python experiments/lexical.py --data DATA --output runs/lexical

Nothing is trained. The mean state of [CLS] over a sample of passages is subtracted from every state, in the bias of the
last layer norm: two texts with nothing in common then have a cosine near 0 instead of 0.5. The lexicon counts documents
in ``DATA/pretrain/*.txt.gz`` (a line is a document) and in ``DATA/pairs/corpus.jsonl.gz``, without the positives of
``DATA/pairs/dev.jsonl.gz``.

The result is the same bytes whenever it is made from the same files with the same libraries.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import granite
import numpy as np
import torch

from dupmae_ir.console import guarded, progress
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.publishing import move_into_place, sha256_file, write_json
from dupmae_ir.models.checkpoints.layout import LEXICON
from dupmae_ir.models.checkpoints.model_config import LexicalSettings, ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.lexical import analyzer_of, bucket_of, save_lexicon
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.types import Document

SAMPLE = 4096
"""Fewest passages over which the mean is taken, where there are so many: every 18th of 77,211."""
BALANCE = 7.0
"""c, the inner product of two equal [CLS] vectors; the middle of the range in which the dev pairs see no difference."""
PRETRAIN = ("textbooks", "MedQuAD", "xquad", "pubmedqa", "factbook", "novels", "classic_books")
_BATCH = 32  #: texts of a forward pass


def centre(start: granite.Granite, texts: list[str], length: int) -> None:
    """Subtract the mean state of [CLS] over ``texts`` from the states of the encoder."""
    encoder = start.encoder
    total = torch.zeros(start.encoder.config.hidden_size, dtype=torch.float64)
    in_order = sorted(texts, key=len)
    with torch.inference_mode(), progress("mean", "texts", total=len(texts)) as bar:
        for first in range(0, len(in_order), _BATCH):
            block = in_order[first : first + _BATCH]
            rows = start.tokenizer(
                block,
                padding=True,
                truncation=True,
                max_length=length,
                return_tensors="pt",
                return_token_type_ids=False,
            )
            total += encoder(**rows).last_hidden_state[:, 0].double().sum(0)
            bar.update(len(block))
        last: Any = encoder.encoder.layer[-1]
        last.output.LayerNorm.bias -= (total / len(texts)).float()


def document_frequencies(texts: Iterable[str], settings: LexicalSettings) -> tuple[np.ndarray, int]:
    """((buckets,) float64 document frequencies of stems, number of documents)."""
    buckets = np.zeros(settings.buckets)
    stems = analyzer_of(settings).terms
    documents = 0
    with progress("stems", "documents") as bar:
        for text in texts:
            buckets[list({bucket_of(stem, settings.buckets) for stem in stems(text)})] += 1
            documents += 1
            bar.update(1)
    return buckets, documents


def lines_of(path: Path) -> Iterator[str]:
    """Lines that are not blank. Raises :class:`InputError` for a missing file."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as f:
            yield from (line.strip() for line in f if line.strip())
    except FileNotFoundError:
        raise InputError(
            f"{path} is missing; --data names the folder with pretrain/ and pairs/"
        ) from None


def pool_of(data: Path) -> list[str]:
    """Title and text of the pairs' passages, without the positives of the dev pairs."""
    held = {
        json.loads(line)["positive"]["id"] for line in lines_of(data / "pairs" / "dev.jsonl.gz")
    }
    passages = (json.loads(line) for line in lines_of(data / "pairs" / "corpus.jsonl.gz"))
    return [
        Document("", p["text"], p.get("title", "")).joined()
        for p in passages
        if p["_id"] not in held
    ]


def make(data: Path, output: Path, balance: float) -> dict[str, Any]:
    """Write the model folder, completely or not at all. Returns its counts."""
    if output.exists():
        raise UsageError(f"{output} exists already; choose another --output or remove it")
    start = granite.load()
    settings = LexicalSettings()
    length = balance**0.5
    stored = ModelConfig(
        method="lexical", query_length=256, normalize=length, ot="lexical", lexical=settings
    )
    files = [*(data / "pretrain" / f"{name}.txt.gz" for name in PRETRAIN)]
    files += [data / "pairs" / f"{name}.jsonl.gz" for name in ("corpus", "dev")]
    pool = pool_of(data)
    texts = (line for path in files[: len(PRETRAIN)] for line in lines_of(path))
    frequencies, documents = document_frequencies(chain(pool, texts), settings)
    centre(start, pool[:: max(1, len(pool) // SAMPLE)], stored.document_length)
    aside = output.with_name(f".{output.name}.writing-lexical")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_lexicon(aside / LEXICON, frequencies, documents)
    width = start.encoder.config.hidden_size
    identity = torch.nn.Linear(width, width, bias=False)
    with torch.no_grad():
        identity.weight.copy_(torch.eye(width))
    retriever = Retriever(start.encoder, identity, *excluded_ids(start.tokenizer), normalize=length)
    save_model(aside / "model", retriever, start.tokenizer, stored, lexicon=aside / LEXICON)
    made = {
        "documents": documents,
        "balance": balance,
        "data": {path.name: sha256_file(path) for path in files},
    }
    write_json(aside / "model" / "training.json", made)
    move_into_place(aside / "model", output)
    shutil.rmtree(aside)
    return made


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with pretrain/ and pairs/")
    parser.add_argument("--output", type=Path, required=True, help="model folder to make")
    parser.add_argument(
        "--balance", type=float, default=BALANCE, help=f"c of the [CLS] part (default: {BALANCE})"
    )
    args = parser.parse_args(argv)
    return guarded(
        lambda: print(json.dumps(make(args.data, args.output, args.balance))), "lexical.py"
    )


if __name__ == "__main__":
    sys.exit(main())
