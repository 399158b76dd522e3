"""Models for MTEB.

import mteb
from dupmae_ir.integrations.mteb import DupmaeEncoder, DupmaeSearch

mteb.evaluate(DupmaeSearch("models/mine"), mteb.get_tasks(["SciFact"]))           # both parts: retrieval tasks
mteb.evaluate(DupmaeSearch("bge-m3", mode="impact"), mteb.get_tasks(["SciFact"])) # or one: dense, impact, hybrid
mteb.evaluate(DupmaeEncoder("models/mine"), mteb.get_tasks(["STSBenchmark"]))     # [CLS] vectors: any task
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.similarity_functions import dot_score, pairwise_dot_score
from mteb.types import PromptType

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode_corpus
from dupmae_ir.io.lines import json_lines
from dupmae_ir.models import load_encoder
from dupmae_ir.search.config import SearchSettings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Encoder, Query

if TYPE_CHECKING:
    import torch

Results = dict[str, dict[str, float]]
"""Query id -> document id -> score."""


class MtebDataset(Protocol):
    """A data set of MTEB: rows with ``id``, ``text`` and, for documents, ``title``."""

    def __iter__(self) -> Any: ...

    def __len__(self) -> int: ...


class DupmaeSearch:
    """Dense, impact or hybrid retrieval, as MTEB's ``SearchProtocol``.

    Args:
        model: model folder, ``default``, or None for the embedded model.
        mode: dense, impact or hybrid; None is everything that the model has.
        folder: where the index of the current task is kept; None is a temporary folder.
        device: auto, cpu, cuda, cuda:N or mps.
        dtype: precision of the forward pass; None is the model's.
        head: ``lexical`` for word weights in closed form with the vectors of any model; None is the model's.
        rerank: model that reorders the first ``rerank_depth`` hits, as ``search --rerank``.
        rerank_depth: how many it reads.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        rerank: str | None = None,
        rerank_depth: int = 50,
        mode: str | None = None,
        head: str | None = None,
        folder: str | Path | None = None,
        device: str = "auto",
        dtype: str | None = None,
    ) -> None:
        self.model = None if model is None else str(model)
        self.mode = mode
        self.head = head
        self.parts = {"dense": "cls", "impact": "ot"}.get(mode or "", "cls,ot")
        self.rerank = rerank
        self.rerank_depth = rerank_depth
        self.device = device
        self.dtype = dtype
        self.folder = Path(folder or mkdtemp(prefix="dupmae-ir-mteb-"))
        if not folder:
            # MTEB has no call for the end of an evaluation, so the temporary folder goes with this object.
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._searcher: Searcher | None = None

    def index(self, corpus: MtebDataset, **_: Any) -> None:
        """Encode a task's corpus into an index."""
        path = self.folder / "corpus.jsonl"
        self.folder.mkdir(parents=True, exist_ok=True)
        with json_lines(path) as write:
            for row in corpus:
                # Where a row has both, `text` repeats the title before the body.
                text = row["body"] if "body" in row else row["text"]
                title = row.get("title") or ""
                write({"_id": str(row["id"]), "title": str(title), "text": str(text)})
        index = self.folder / "index"
        encode_corpus(
            EncodeConfig(
                corpus=str(path),
                index=str(index),
                model=self.model,
                parts=self.parts,
                head=self.head,
                device=self.device,
                dtype=self.dtype,
                overwrite=True,
                quiet=True,
            )
        )
        settings = SearchSettings()
        if self.rerank:
            # Without a limit on time, so that results do not depend on the machine.
            settings = SearchSettings(
                rerank=self.rerank, rerank_depth=self.rerank_depth, rerank_seconds=0.0
            )
        self._searcher = Searcher.open(index, self.model, device=self.device, settings=settings)
        self._searcher.load_reranker()

    def search(
        self,
        queries: MtebDataset,
        *,
        top_k: int,
        top_ranked: Mapping[str, Iterable[str]] | None = None,
        **_: Any,
    ) -> Results:
        """The best ``top_k`` documents of each query; with ``top_ranked``, of those documents alone, and none for a
        query that it does not name."""
        assert self._searcher, "MTEB calls index before search"
        topics = [Query(str(row["id"]), str(row["text"])) for row in queries]
        hit_count = top_k
        if top_ranked is not None:
            # Any document may be among those to rank, so the search returns all of them.
            hit_count = self._searcher.index.documents
        results: Results = {}
        for answer in self._searcher.answers(topics, max(1, hit_count), self.mode):
            qid = answer.query.qid
            hits = answer.hits
            if top_ranked is not None:
                allowed = set(top_ranked.get(qid, ()))
                hits = [hit for hit in hits if hit.docid in allowed]
            results[qid] = {hit.docid: hit.score for hit in hits[:top_k]}
        return results

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """What MTEB records about the model."""
        kind = {"dense": "dense", "impact": "sparse"}.get(self.mode or "", "hybrid")
        encoder = load_encoder(
            self.model, device="cpu", parts=tuple(self.parts.split(",")), head=self.head
        )
        suffix = ""
        if self.mode:
            suffix += f"-{self.mode}"
        if self.rerank:
            suffix += f"-{Path(self.rerank).name}"
        return _meta(encoder, [kind], suffix)


class DupmaeEncoder:
    """The [CLS] vectors of a model, as MTEB's ``EncoderProtocol``.

    Args:
        model: model folder, ``default``, or None for the embedded model.
        device: auto, cpu, cuda, cuda:N or mps.
        dtype: precision of the forward pass; None is the model's.
    """

    def __init__(
        self, model: str | Path | None = None, *, device: str = "auto", dtype: str | None = None
    ) -> None:
        self.encoder = load_encoder(model, device=device, dtype=dtype, parts=("cls",))

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **_: Any
    ) -> np.ndarray:
        """(n, dim) float32 for MTEB's batches of texts; queries and documents have different maximum lengths."""
        texts = []
        for batch in inputs:
            texts += [str(text) for text in batch["text"]]
        # Texts of tasks that are not retrieval have no type and are encoded as documents.
        if prompt_type is not None and PromptType(prompt_type) is PromptType.query:
            encoded = self.encoder.encode_queries(texts)
        else:
            encoded = self.encoder.encode_documents(texts)
        assert encoded.cls is not None
        return encoded.cls

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """(n, m) inner products."""
        return dot_score(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """(n,) inner products."""
        return pairwise_dot_score(embeddings1, embeddings2)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """What MTEB records about the model."""
        return _meta(self.encoder, ["dense"])


def _meta(encoder: Encoder, kinds: list[Any], suffix: str = "") -> ModelMeta:
    """What MTEB records about a model.

    ``suffix`` distinguishes the modes and rerankers of one model: MTEB reuses results of the same name and revision.
    """
    return ModelMeta(
        loader=None,
        name=f"dupmae-ir/{Path(encoder.name).name}{suffix}",
        revision=encoder.digest[:12],
        release_date=None,
        languages=None,
        n_parameters=None,
        memory_usage_mb=None,
        max_tokens=encoder.settings.document_length,
        embed_dim=encoder.dim,
        license=None,
        open_weights=None,
        public_training_code=None,
        public_training_data=None,
        framework=["PyTorch"],
        similarity_fn_name=ScoringFunction.DOT_PRODUCT,
        use_instructions=False,
        training_datasets=None,
        model_type=kinds,
    )
