"""Converting a model to ONNX or OpenVINO: one graph with both representations.

Inputs are ``input_ids`` and ``attention_mask``, (B, L) int64. Outputs are ``cls``, (B, d') float32 (DupMAE Eq. 10),
and, for a masked-LM OT part, ``ot_terms`` (B, k) int64 and ``ot_weights`` (B, k) float32, the largest weights of each
text in descending order (Eq. 6-7), where k is 1,024, Lucene's limit for queries; of a document the first
``document_terms`` are kept (Eq. 11). Token weights (BGE-M3) have an entry for each token, so k is L. Entries of weight
0 belong to no term. A lexical OT part is word counts, not a graph, and is left out. The model must be tied: both sides
share one graph.

``graph.json``, in the same folder, has the lengths, k of documents and queries, and the title separator.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from dupmae_ir.errors import EnvironmentProblem, UsageError
from dupmae_ir.io.publishing import write_json
from dupmae_ir.models.checkpoints.loading import load_model, quiet_transformers
from dupmae_ir.models.heads.masked_lm import has_head
from dupmae_ir.models.pooling import ACTIVATIONS
from dupmae_ir.models.retriever import Retriever

GRAPH = "model.onnx"
INT8 = "model.int8.onnx"
OPENVINO = "model.xml"
SETTINGS = "graph.json"
QUERY_TERMS = 1024  #: OT weights kept of a query: Lucene's limit
_OPSET = 18
_RECORDED_SETTINGS = (
    "document_length",
    "query_length",
    "title_separator",
    "activation",
    "normalize",
    "impact_scale",
)
_SAMPLE_TEXTS = (
    "how do I rotate the log files every night?",
    "Masked auto-encoding trains one vector per text.",
    "time zones",
    "The impact of a term is its largest logit over all tokens of the text, after a ReLU.",
)
"""Texts on which the graphs are compared with the model."""


class Graph(nn.Module):
    """The computation that is exported: ids and mask to both representations of a batch."""

    def __init__(self, retriever: Retriever, k: int, ot: bool) -> None:
        super().__init__()
        self.retriever = retriever
        self.k = k
        self.ot = ot

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["cls", "ot_terms", "ot_weights"] if self.ot else ["cls"]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """``(cls,)`` or ``(cls, ot_terms, ot_weights)``."""
        hidden = self.retriever.hidden(input_ids, attention_mask)
        cls = self.retriever.cls_part(hidden, attention_mask)
        if not self.ot:
            return (cls,)
        # Retriever.ot_part in operations that ONNX has: its chunked maximum is a custom autograd function.
        model = self.retriever
        mask = attention_mask.bool() & model.pooled_mask[input_ids]
        if model.token_weight is not None:
            logits = model.token_weight(hidden).squeeze(-1)
            has_weight = mask & model.term_mask[input_ids]
            weights = ACTIVATIONS[model.activation](logits).masked_fill(~has_weight, 0.0)
            return cls, *_distinct_terms(input_ids, weights, len(model.term_mask))
        head = model.head
        logits = head.transform(hidden) @ head.weight.t()
        pooled = logits.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)
        if head.bias is not None:
            # The same for all tokens, so it can be added after the maximum.
            pooled = pooled + head.bias
        pooled = pooled.masked_fill(~(model.term_mask & mask.any(1, keepdim=True)), 0.0)
        weights, terms = ACTIVATIONS[model.activation](pooled).topk(self.k, dim=1)
        return cls, terms, weights


def _distinct_terms(ids: Tensor, weights: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """(B, L) weights of tokens -> ids and weights (B, L), descending by weight.

    A term has its largest weight at its first occurrence; all other entries are 0.
    """
    batch, length = ids.shape
    positions = torch.arange(length, device=ids.device).expand(batch, length)
    largest = weights.new_zeros(batch, terms).scatter_reduce(1, ids, weights, "amax").gather(1, ids)
    # L, which is above every position, for terms that do not occur.
    first = positions.new_zeros(batch, terms) + length
    first = first.scatter_reduce(1, ids, positions, "amin").gather(1, ids)
    weights, order = torch.where(first == positions, largest, 0.0).sort(1, descending=True)
    return ids.gather(1, order), weights


class ExportedGraph(TypedDict):
    """What was written, and its differences from the model on a few texts."""

    parts: list[str]
    bytes: dict[str, int]  #: of each graph
    differences: dict[str, dict[str, float]]
    """Of each graph: the largest absolute difference of a [CLS] component and of an OT weight; for 8 bits the smallest
    cosine and the smallest share of common terms."""


def write_graph(model: str | Path, folder: Path, to: str, int8: bool) -> ExportedGraph:
    """Write a model's graph, tokenizer and ``graph.json`` to the new ``folder``.

    Args:
        model: model folder.
        folder: folder to create.
        to: ``onnx`` or ``openvino``.
        int8: also store the weights in 8 bits, in ``model.int8.onnx`` (ONNX only).

    Raises :class:`UsageError` for an untied model and :class:`EnvironmentProblem` without the extra ``onnx``.
    """
    retriever, tokenizer, config = load_model(model, need_ot=False, published=True)
    if not isinstance(retriever, Retriever):
        raise UsageError(
            f"{model}: has different encoders for queries and documents; export each side's subfolder"
        )
    if config.sparse_encoder:
        raise UsageError(
            f"{model}: is a SparseEncoder, which sentence-transformers itself runs with backend='onnx'"
        )
    ot = config.ot == "token_weight" or (config.ot == "mlm" and has_head(retriever.lm))
    k = min(QUERY_TERMS, int(retriever.lm.config.vocab_size))
    graph = Graph(retriever.eval(), k, ot).eval()
    folder.mkdir(parents=True)

    batch = tokenizer(
        list(_SAMPLE_TEXTS),
        padding=True,
        truncation=True,
        max_length=config.document_length,
        return_tensors="np",
    )
    inputs = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    _export(graph, inputs, folder / GRAPH)
    with torch.inference_mode():
        expected = [value.numpy() for value in graph(*map(torch.from_numpy, inputs.values()))]
    differences = {GRAPH: _difference(expected, _run_onnx(folder / GRAPH, inputs))}
    if int8:
        with _packages(), _quiet():
            from onnxruntime.quantization import QuantType, quantize_dynamic

            # Seven bits: with eight, the sums of two products overflow 16 bits on processors without VNNI (AVX2).
            options = {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True}
            quantize_dynamic(str(folder / GRAPH), str(folder / INT8), **options)
        differences[INT8] = _loss(expected, _run_onnx(folder / INT8, inputs))
    if to == "openvino":
        # The ONNX graph is only a step on the way, and _to_openvino removes it.
        differences = {OPENVINO: _difference(expected, _to_openvino(folder, inputs))}

    tokenizer.save_pretrained(str(folder))
    settings: dict[str, object] = {"outputs": graph.outputs}
    for name in _RECORDED_SETTINGS:
        settings[name] = getattr(config, name)
    if ot:
        settings["document_terms"] = config.top_k
        settings["query_terms"] = QUERY_TERMS
    write_json(folder / SETTINGS, settings)
    sizes = {name: (folder / name).stat().st_size for name in differences}
    return {"parts": ["cls", "ot"] if ot else ["cls"], "bytes": sizes, "differences": differences}


def _export(graph: Graph, inputs: Mapping[str, np.ndarray], path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    length = torch.export.Dim("length", min=3)
    with _quiet(), quiet_transformers(), _packages():
        torch.onnx.export(
            graph,
            tuple(map(torch.from_numpy, inputs.values())),
            str(path),
            input_names=list(inputs),
            output_names=graph.outputs,
            dynamic_shapes={name: {0: batch, 1: length} for name in inputs},
            opset_version=_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _run_onnx(path: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    with _packages():
        import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def _to_openvino(folder: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Convert the ONNX graph of ``folder``, remove it, and return what the converted graph computes."""
    with _packages(), _quiet():
        import openvino

        converted = openvino.convert_model(str(folder / GRAPH))
        openvino.save_model(converted, str(folder / OPENVINO), compress_to_fp16=False)
        # float32 in the comparison too: the default of a processor with bfloat16 is bfloat16.
        compiled = openvino.compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        results = compiled(dict(inputs))
    (folder / GRAPH).unlink()
    return [results[output] for output in compiled.outputs]


def _difference(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> dict[str, float]:
    """The largest absolute difference of each output, terms compared through their weights."""
    differences = {"cls": float(np.abs(expected[0] - got[0]).max())}
    if len(expected) > 1:
        differences["ot"] = max(_weight_differences(expected, got))
    return differences


def _weight_differences(
    expected: Sequence[np.ndarray], got: Sequence[np.ndarray]
) -> Iterator[float]:
    """The absolute difference of each term's weight in each text."""
    for ours, theirs in zip(_weights_by_term(expected), _weights_by_term(got), strict=True):
        for term in ours.keys() | theirs.keys():
            yield abs(ours.get(term, 0.0) - theirs.get(term, 0.0))


def _loss(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> dict[str, float]:
    """The smallest cosine of a [CLS] vector with the expected one, and the smallest share of a text's terms that are
    among those computed."""
    dot = (expected[0] * got[0]).sum(1)
    norms = np.linalg.norm(expected[0], axis=1) * np.linalg.norm(got[0], axis=1)
    loss = {"cls_cosine": float((dot / norms).min())}
    if len(expected) > 1:
        shares = []
        for ours, theirs in zip(_weights_by_term(expected), _weights_by_term(got), strict=True):
            common = ours.keys() & theirs.keys()
            shares.append(len(common) / max(1, len(ours)))
        loss["ot_common"] = min(shares)
    return loss


def _weights_by_term(outputs: Sequence[np.ndarray]) -> list[dict[int, float]]:
    """Term -> weight of each text, without weights of 0."""
    texts = []
    for terms, weights in zip(outputs[1], outputs[2], strict=True):
        positive = weights > 0
        pairs = zip(terms[positive].tolist(), weights[positive].tolist(), strict=True)
        texts.append(dict(pairs))
    return texts


@contextmanager
def _packages() -> Iterator[None]:
    """Turn a missing package into the extra to install."""
    try:
        yield
    except ImportError as e:
        raise EnvironmentProblem(
            f"{e.name or e} is not installed; run: pip install 'dupmae-ir[onnx]'"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings and logs of the exporters."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
