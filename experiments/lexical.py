"""Make the lexical model: MiniLM's mean pooling as [CLS], BM25-like weights of stems and word pieces as OT part.

    python experiments/lexical.py --data DATA --output runs/lexical

Nothing is trained. A seventh BERT layer in closed form (queries and keys 0, values the identity, output LARGE times the
identity, no feed-forward part) attends uniformly, so that [CLS] is the mean of the tokens: layer norm of
``x + LARGE * mean`` is that of the mean up to 1 / LARGE. W_cls = sqrt(c / d) I makes the inner product of two [CLS]
vectors c times the cosine. The lexicon counts documents in ``DATA/pretrain/*.txt.gz`` (a line is a document) and in
``DATA/pairs/corpus.jsonl.gz``, without the positives of ``DATA/pairs/dev.jsonl.gz``.

The result is the same bytes whenever it is made from the same files with the same libraries.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertModel, PreTrainedTokenizerBase

from dupmae_ir.console import guarded, progress
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.publishing import move_into_place, sha256_file, write_json
from dupmae_ir.models.checkpoints.layout import LEXICON
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import LexicalSettings, ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.lexical import analyzer_of, bucket_of, save_lexicon
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.types import Document

LARGE = 1000.0
BALANCE = 5.0
"""c, the inner product of two equal [CLS] vectors; the middle of the range in which the dev pairs see no difference."""
PRETRAIN = ("textbooks", "MedQuAD", "xquad", "pubmedqa", "factbook", "novels", "classic_books")
_BLOCK = 1024  #: texts tokenised at a time


def with_mean_layer(encoder: BertModel) -> BertModel:
    """``encoder`` with one more layer, after which the first token's state is the mean of the tokens, normalised."""
    config = type(encoder.config).from_dict(encoder.config.to_dict())
    config.num_hidden_layers += 1
    longer = BertModel(config, add_pooling_layer=False)
    longer.load_state_dict(encoder.state_dict(), strict=False)
    last: Any = longer.encoder.layer[-1]
    identity = torch.eye(config.hidden_size)
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.zero_()
        last.attention.self.value.weight.copy_(identity)
        last.attention.output.dense.weight.copy_(LARGE * identity)
        for norm in (last.attention.output.LayerNorm, last.output.LayerNorm):
            norm.weight.fill_(1.0)
    return longer.eval()


def scaled_identity(width: int, balance: float) -> torch.nn.Linear:
    """W_cls of (width, width): the inner product of two [CLS] vectors is ``balance`` times their cosine, because
    layer norm gives all of them the length sqrt(width)."""
    projection = torch.nn.Linear(width, width, bias=False)
    with torch.no_grad():
        projection.weight.copy_((balance / width) ** 0.5 * torch.eye(width))
    return projection


def document_frequencies(
    texts: Iterable[str], pool: list[str], tokenizer: PreTrainedTokenizerBase, settings: LexicalSettings, length: int
) -> tuple[np.ndarray, int]:
    """((V + buckets,) float64 document frequencies, number of documents).

    Stems are counted in ``texts`` and ``pool``, word pieces in ``pool`` alone, scaled to the number of all documents.
    """
    buckets, stems = np.zeros(settings.buckets), analyzer_of(settings).terms
    documents = 0
    with progress("stems", "documents") as bar:
        for text in (*pool, *texts):
            buckets[list({bucket_of(stem, settings.buckets) for stem in stems(text)})] += 1
            documents += 1
            bar.update(1)
    pieces = np.zeros(len(tokenizer))
    for start in range(0, len(pool), _BLOCK):
        block = tokenizer(pool[start : start + _BLOCK], truncation=True, max_length=length)["input_ids"]
        for ids in block:
            pieces[list(set(ids))] += 1
    pieces[tokenizer.all_special_ids] = 0
    return np.concatenate([pieces * documents / max(1, len(pool)), buckets]), documents


def lines_of(path: Path) -> Iterator[str]:
    """Lines that are not blank. Raises :class:`InputError` for a missing file."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as f:
            yield from (line.strip() for line in f if line.strip())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; --data names the folder with pretrain/ and pairs/") from None


def pool_of(data: Path) -> list[str]:
    """Title and text of the pairs' passages, without the positives of the dev pairs."""
    held = {json.loads(line)["positive"]["id"] for line in lines_of(data / "pairs" / "dev.jsonl.gz")}
    passages = (json.loads(line) for line in lines_of(data / "pairs" / "corpus.jsonl.gz"))
    return [Document("", p["text"], p.get("title", "")).joined() for p in passages if p["_id"] not in held]


def make(base: str, data: Path, output: Path, balance: float) -> dict[str, Any]:
    """Write the model folder, completely or not at all. Returns its counts."""
    if output.exists():
        raise UsageError(f"{output} exists already; choose another --output or remove it")
    model, tokenizer, config = load_model(model_folder(base), need_ot=False)
    if not isinstance(model, Retriever) or not isinstance(model.lm, BertModel):
        raise UsageError(f"--base {base}: must be a BERT encoder without a head, whose mean pooling is the vector")
    settings, stored = LexicalSettings(), ModelConfig(method="lexical", query_length=256, ot="lexical")
    stored = ModelConfig(**{**stored.__dict__, "lexical": settings, "top_k": config.top_k})
    files = [*(data / "pretrain" / f"{name}.txt.gz" for name in PRETRAIN)]
    files += [data / "pairs" / f"{name}.jsonl.gz" for name in ("corpus", "dev")]
    texts = (line for path in files[: len(PRETRAIN)] for line in lines_of(path))
    frequencies, documents = document_frequencies(texts, pool_of(data), tokenizer, settings, stored.document_length)
    aside = output.with_name(f".{output.name}.writing-lexical")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_lexicon(aside / LEXICON, frequencies, documents)
    lm = with_mean_layer(model.lm)
    retriever = Retriever(lm, scaled_identity(lm.config.hidden_size, balance), *excluded_ids(tokenizer))
    save_model(aside / "model", retriever, tokenizer, stored, half=True, lexicon=aside / LEXICON)
    made = {"documents": documents, "balance": balance, "data": {path.name: sha256_file(path) for path in files}}
    write_json(aside / "model" / "training.json", made)
    move_into_place(aside / "model", output)
    shutil.rmtree(aside)
    return made


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with pretrain/ and pairs/")
    parser.add_argument("--output", type=Path, required=True, help="model folder to make")
    parser.add_argument("--base", default="minilm", help="sentence encoder with mean pooling (default: minilm)")
    parser.add_argument("--balance", type=float, default=BALANCE, help=f"c of the [CLS] part (default: {BALANCE})")
    args = parser.parse_args(argv)
    return guarded(lambda: print(json.dumps(make(args.base, args.data, args.output, args.balance))), "lexical.py")


if __name__ == "__main__":
    sys.exit(main())
