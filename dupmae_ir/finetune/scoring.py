"""The work of ``finetune.score``: a teacher's scores for every passage of a file of mined negatives.

Positives are scored as well: distillation compares the scores within a query (Eq. 15), and one missing score would
stop training half-way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dupmae_ir.console import progress, say
from dupmae_ir.device import pick_device, pick_dtype, processors, with_torch_threads
from dupmae_ir.errors import CheckpointError, DupmaeError, InputError
from dupmae_ir.finetune.data import (
    MinedQuery,
    Passages,
    counted,
    files_digest,
    open_passages,
    read_mined,
    write_file,
)
from dupmae_ir.finetune.mining import model_digest, open_bm25, open_retriever, retriever_hits
from dupmae_ir.finetune.score import ScoreConfig
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.lines import ResumableJsonl
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.reranker import check_length, load_reranker, score_pairs, separator
from dupmae_ir.search.fusion import interpolate, rrf
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Query

WINDOW = 64  #: queries scored between two saves, and sorted by length together
Scores = Mapping[str, float]
"""docid -> score."""
ScoreTeacher = Callable[[Sequence[MinedQuery]], Sequence[Scores]]
"""Mined queries -> the scores of each; a passage that is missing has the score 0."""


@with_torch_threads
def run(config: ScoreConfig) -> dict[str, object]:
    """Score all pairs, write ``config.output`` and its record, and return the counts.

    Raises :class:`DupmaeError` subclasses; see :mod:`dupmae_ir.io.jobs` for what a second run returns.
    """
    if not Path(config.mined).is_file():
        raise InputError(f"{config.mined}: no such file; create it with dupmae-ir finetune.mine")
    if config.teacher == "cross-encoder" and not Path(config.model).is_dir():
        raise CheckpointError(f"{config.model}: no such model folder; nothing is downloaded")
    device, _ = pick_device(config.device)
    dtype, _ = pick_dtype(config.dtype or "float32", device)
    digests = {
        "mined": files_digest,
        "model": model_digest if config.teacher == "fused" else folder_digest,
    }
    return write_file(
        config,
        "finetune.score",
        # The record of the mined file identifies the collection.
        ("mined", "model"),
        lambda job: _score(config, job),
        digests,
        dtype=str(dtype).removeprefix("torch."),
        collection=None,
    )


def _score(config: ScoreConfig, job: Job) -> dict[str, object]:
    work = job.begin()
    mined = read_mined(config.mined)
    passages = open_passages(config.mined, mined, config.collection)
    if config.teacher == "fused":
        teacher = fused_teacher(config, mined, passages.source, work)
    else:
        teacher = cross_encoder_teacher(config, passages)
    lines = ResumableJsonl(work / "lines.jsonl", len(mined), WINDOW)
    if lines.done:
        say(f"resuming after {lines.done:,} of {len(mined):,} queries", config.quiet)
    total = _pairs(mined)
    done = _pairs(mined[: lines.done])
    started = time.monotonic()
    with progress("score", "pairs", total, config.quiet, done) as bar:
        for start in range(lines.done, len(mined), WINDOW):
            window = mined[start : start + WINDOW]
            scored = zip(window, teacher(window), strict=True)
            lines.append([_scores_line(query, scores) for query, scores in scored])
            bar.update(_pairs(window))
    seconds = time.monotonic() - started
    pace = (total - done) / max(seconds, 1e-9)
    timing = {"seconds": round(seconds, 1), "pairs_per_second": round(pace, 1)}
    return job.publish(lines.path, {"queries": len(mined), "pairs": total}) | timing


def _scores_line(query: MinedQuery, scores: Scores) -> dict[str, object]:
    """The line of a query: the score of each of its passages, with seven digits, as float32 has them."""
    rounded = {}
    for docid in query.docids:
        rounded[docid] = float(f"{scores.get(docid, 0.0):.7g}")
    return {"qid": query.qid, "scores": rounded}


def _pairs(mined: Sequence[MinedQuery]) -> int:
    return sum(len(query.docids) for query in mined)


def cross_encoder_teacher(config: ScoreConfig, passages: Passages) -> ScoreTeacher:
    """The scores of a cross-encoder for each query with its passages."""
    device, _ = pick_device(config.device)
    dtype, _ = pick_dtype(config.dtype or "float32", device)
    model, tokenizer = load_reranker(config.model)
    check_length(config.length, model, tokenizer)
    model = model.to(device=device, dtype=dtype)
    join = separator(config.title_separator, tokenizer)

    def score(window: Sequence[MinedQuery]) -> list[Scores]:
        documents = []
        queries = []
        texts = []
        for mined in window:
            group = [*mined.positives, *map(passages.__getitem__, mined.negatives)]
            documents.append(group)
            queries += [mined.query] * len(group)
            texts += [document.joined(join) for document in group]
        scores = score_pairs(model, tokenizer, queries, texts, config.length, config.batch_tokens)
        if not scores.isfinite().all():
            raise DupmaeError(f"{config.model}: some scores are not finite; try `dtype` float32")
        values = iter(scores.tolist())
        scores_by_query: list[Scores] = []
        for group in documents:
            scores_by_query.append({document.docid: next(values) for document in group})
        return scores_by_query

    return score


def fused_teacher(
    config: ScoreConfig, mined: Sequence[MinedQuery], source: str, work: Path
) -> ScoreTeacher:
    """A teacher without training: the scores of BM25's and a retriever's lists, fused.

    For a query with the lists of its best ``config.depth`` documents by BM25 and by the retriever over the complete
    collection ``source``, whose indexes are built in ``work``, or continued there:

        min-max    mean of both scores, each mapped linearly so that its list spans [0, 1]; 0 if a list lacks a document
        rrf        1 / (rrf_k + rank by BM25) + 1 / (rrf_k + rank by the retriever); nothing if a list lacks a document
        sum        BM25 + dense_weight * the retriever's score, exact for every candidate

    Raises :class:`InputError` with counts for positives that the collection lacks, which no list can contain.
    """
    bm25 = open_bm25(config, source, work / "bm25")
    searcher = open_retriever(config, config.model, source, work / "index")
    absent = []
    for query in mined:
        for positive in query.positives:
            if searcher.row(positive.docid) is None:
                absent.append(f"{positive.docid} of query {query.qid}")
    if absent:
        what = counted(absent, f"positive is not in {source}", f"positives are not in {source}")
        raise InputError(
            f"{config.mined}: {what}, so no list contains them; mine in a collection that has them, or use a "
            "cross-encoder"
        )
    if config.fusion == "sum":
        return _sum_teacher(config, searcher, work / "bm25")

    def score(window: Sequence[MinedQuery]) -> list[Scores]:
        queries = [Query(mined.qid, mined.query) for mined in window]
        by_model = retriever_hits(searcher, queries, config.depth, config.parts)
        by_bm25 = bm25.search(queries, config.depth, config.threads or processors())
        fused: list[Scores] = []
        for query in queries:
            lists = by_bm25[query.qid], by_model[query.qid]
            if config.fusion == "rrf":
                hits = rrf(lists, config.rrf_k)
            else:
                hits = interpolate(*lists, 0.5, normalize=True)
            fused.append({hit.docid: hit.score for hit in hits})
        return fused

    return score


def _sum_teacher(config: ScoreConfig, searcher: Searcher, bm25: Path) -> ScoreTeacher:
    """BM25's score plus the retriever's, weighted, for every candidate."""
    dense = 1.0
    impact = 1.0
    if config.parts == "hybrid":
        dense, impact = searcher.part_weights
    summed = searcher.with_settings(
        bm25_index=str(bm25),
        k1=config.k1,
        b=config.b,
        dense_weight=config.dense_weight * dense,
        impact_weight=config.dense_weight * impact,
    )

    def score(window: Sequence[MinedQuery]) -> list[Scores]:
        scores: list[Scores] = []
        for mined in window:
            explanations = summed.explain_all(mined.query, mined.docids)
            scores.append({one.docid: one.score for one in explanations})
        return scores

    return score
