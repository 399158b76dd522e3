"""Options of ``dupmae-ir encode``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import NotRequired, TypedDict

from dupmae_ir.config import (
    ComputeOptions,
    OutputOptions,
    TitleOptions,
    compute_option,
    input_option,
    option,
    output_option,
)
from dupmae_ir.errors import UsageError
from dupmae_ir.io.collections import FileReport
from dupmae_ir.io.sources import CorpusOptions
from dupmae_ir.models.languages import AUTO, LANGUAGES, check_language

encoding_option = partial(option, group="encoding")


class IndexSummary(TypedDict):
    """What a command that made an index reports of it."""

    index: str
    status: str
    documents: int
    empty_documents: int
    parts: list[str]
    dim: int | None
    scale: float | None
    scale_source: str | None
    postings: int | None
    clipped: int | None
    truncated: int
    digest: str
    sources: NotRequired[FileReport]


class EncodeResult(IndexSummary):
    """The index, and what this run did."""

    encoded_now: int
    resumed: int
    seconds: float
    documents_per_second: float | None
    by_worker_now: NotRequired[dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class EncodeConfig(CorpusOptions, TitleOptions, ComputeOptions, OutputOptions):
    """Encode a collection into an index folder: dense vectors for faiss (cls) and impacts for Lucene (ot), from one
    forward pass. The collection is a folder of documents, which are split into passages, or a file with a document on
    each line. It is streamed. If interrupted or killed, run the same command to resume.

    Examples:
        dupmae-ir encode --corpus my-docs/ --index my-index
        dupmae-ir encode --corpus corpus.jsonl --index indexes/mine
        dupmae-ir encode --corpus collection.tsv.gz --index I --devices 0,1,2,3
        dupmae-ir encode --corpus collection.tsv.gz --index I.0 --shard 0/4 --device cuda
        zcat docs/*.gz | dupmae-ir encode --corpus - --index I --fields title text
    """

    index: str = output_option(
        help="index folder to make, or a URL to make one at: s3://bucket/index", metavar="FOLDER"
    )
    model: str | None = encoding_option(
        None,
        "model folder or name (dupmae-ir models list); without it, the embedded default model, which reads English. "
        "multilingual: about 100 languages; auto: multilingual if it is installed and most of the text is not English",
        metavar="MODEL",
    )
    parts: str = encoding_option(
        "cls,ot",
        "what to encode: cls (dense vectors), ot (impacts) or both in one pass, cls,ot",
        choices=("cls,ot", "cls", "ot"),
        metavar="PARTS",
    )
    head: str | None = encoding_option(
        None,
        "what gives the impacts. lexical: word weights in closed form, with dense vectors of any model; without it, "
        "the model's own",
        choices=("lexical",),
        only_with=("parts=ot", "parts=cls,ot"),
    )
    fold_terms: str | None = encoding_option(
        None,
        "one term for those that differ by case or a leading space alone (ModernBERT's vocabulary), with the largest "
        "weight (max) or the sum",
        choices=("max", "sum"),
        only_with=("parts=ot", "parts=cls,ot"),
    )
    dimensions: int | None = encoding_option(
        None,
        "leading dimensions kept of a dense vector, for models trained so (Matryoshka); without it, all",
        above=0,
        only_with=("parts=cls", "parts=cls,ot"),
    )
    excerpts: bool = encoding_option(
        False,
        "vectors of excerpts as well, runs of sentences of at most 64 word pieces, for questions about one sentence of "
        "a passage; encoding takes two to three times as long",
        only_with=("parts=cls", "parts=cls,ot"),
    )
    store_texts: bool = output_option(
        True,
        "keep titles, texts and metadata in the index, compressed: search shows and filters by them",
    )
    postings: bool = output_option(
        True,
        "store the impacts by term as well, for search without Java (with the extra speed); about a fifth of the index",
        only_with=("parts=ot", "parts=cls,ot"),
    )
    document_length: int | None = encoding_option(
        None,
        "word pieces kept of each document, special tokens included; without it, the model's own",
        above=0,
    )
    top_k: int | None = encoding_option(
        None, "strongest impacts kept of each document; without it, the model's own", above=0
    )
    activation: str | None = encoding_option(
        None,
        "of the logits: relu, log1p, or log1p-log1p (OpenSearch v3); without it, the model's own",
        choices=("relu", "log1p", "log1p-log1p"),
    )
    normalize: bool | None = encoding_option(
        None, "dense vectors of unit length (SimLM), or not; without it, the model's own"
    )
    language: str = encoding_option(
        AUTO,
        f"language in which words are stemmed (for the word weights of default and multilingual): {AUTO} detects it "
        f"for each document; a code sets it for all ({', '.join(LANGUAGES)}); other: words without stems",
        metavar="CODE",
        only_with=("parts=ot", "parts=cls,ot"),
    )
    scale: float | None = encoding_option(
        None,
        "impact = round(weight x scale), at most 255; without it, the model's own, else calibrated on the first "
        "documents",
        above=0,
        at_most=sys.float_info.max,
        only_with=("parts=ot", "parts=cls,ot"),
    )
    window: int = compute_option(
        1024, "documents encoded between two saves, and sorted by length together", above=0
    )
    shard: str | None = input_option(
        None,
        "encode only share i of n (0/4, 1/4, ...); join with dupmae-ir encode.merge",
        metavar="I/N",
    )
    devices: str | None = compute_option(
        None,
        "devices of this machine that encode at the same time, one process each: numbers of GPUs or names (0,1,2,3; "
        "cuda:0,cpu; cpu,cpu)",
        metavar="NAMES",
        only_with="executor=local",
    )
    executor: str = compute_option(
        "local",
        "local: this machine; ray: the machines of the Ray cluster in RAY_ADDRESS; without it, one is started here",
        choices=("local", "ray"),
    )
    workers: int = compute_option(
        0,
        "processes on the Ray cluster; 0 = one per GPU, without GPUs one per processor (with --threads N, per N)",
        at_least=0,
        only_with="executor=ray",
    )
    overwrite: bool = output_option(False, "replace an older index, once the new one is complete")
    restart: bool = output_option(False, "discard the unfinished work of an earlier run")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.language != AUTO:
            check_language(self.language)
        if self.devices is not None and self.device != "auto":
            raise UsageError(
                "`devices` and `device` exclude each other; name all devices in `devices`"
            )
        self.device_names()

    def device_names(self) -> list[str]:
        """The names in ``--devices``, numbers as ``cuda:N``; none without the flag."""
        if self.devices is None:
            return []
        names = [name.strip() for name in self.devices.split(",")]
        if not all(names):
            raise UsageError(
                f"`devices` {self.devices}: expected names separated by commas, for example 0,1,2,3"
            )
        return [f"cuda:{name}" if name.isdecimal() else name for name in names]

    def shard_of(self) -> tuple[int, int]:
        """``"1/4"`` -> (1, 4); (0, 1) without ``--shard``. Raises :class:`UsageError` for anything else."""
        if self.shard is None:
            return 0, 1
        first, slash, last = self.shard.partition("/")
        if not (slash and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
            raise UsageError(
                f"`shard` {self.shard}: expected I/N with I from 0 to N-1, for example 0/4 up to 3/4"
            )
        return int(first), int(last)
