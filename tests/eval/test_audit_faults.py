"""One fault in a copy of eval/ makes tools/audit_recipes.py name it: a setting, a printed number, a model, a step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from audit_cases import RECORD as CASES_RECORD
from audit_recipes import RECORD, audit_numbers, audit_recipes
from audit_recipes import main as audit_main
from paper_tables import Cell
from support.seeds import sample

from dupmae_ir.config import read_toml

ROOT = Path(__file__).resolve().parents[2]
DUPMAE = "dupmae.msmarco-passage.toml"
MASTER = "master-ablations.msmarco-passage.toml"

SETTINGS = [
    (
        "recipes/finetune-nq.toml",
        "limit = 0  # paper, section 4.2: all training questions",
        "limit = 0",
        "finetune-nq, inputs: limit = 0 has no origin",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "eval_steps = 500  # ours: changes no update",
        "eval_steps = 500",
        "finetune-dupmae, finetune: eval_steps = 500 has no origin",
    ),
    (
        "recipes/pretrain-dupmae.toml",
        "bow_weight = 1.0  # paper, Eq. 9: weight 1",
        "bow_weight = 1.0  # as usual",
        "the origin of bow_weight names no source and no reason: as usual",
    ),
    ("models.toml", "top_k = 260", "top_k = 384", "top_k is 384, 260"),
    (
        "hyperparameters.toml",
        "sample_from_top = 100",
        "sample_from_top = 200",
        "sample_from_top is 100, 200",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "train_top_k = true",
        "train_top_k = false",
        "train_top_k is False, True",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "batch_tokens = 8192",
        "batch_tokens = 64",
        "batch_tokens is 64, 8192",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "clip = 1.0",
        "clip = 5.0",
        "finetune-dupmae, stage1: clip is 5.0, 1.0",
    ),
    ("recipes/finetune-dupmae.toml", "depth = 200", "depth = 25", "depth is 25, 200"),
    (
        "recipes/finetune-dupmae.toml",
        'activation = "relu"',
        'activation = "log1p"',
        "activation is log1p, relu",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "part_weight = 0.0",
        "part_weight = 0.5",
        "part_weight is 0.5, 0.0",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "temperature = 1.0",
        "temperature = 0.05",
        "temperature is 0.05, 1.0",
    ),
    (
        "recipes/finetune-dupmae.toml",
        'encoder = "tied"',
        'encoder = "untied"',
        "encoder is untied, tied",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "remove_query = false",
        "remove_query = true",
        "remove_query is True, False",
    ),
    (
        "recipes/finetune-dupmae.toml",
        'third_start = "{stage2}"',
        'third_start = "{stage1}"',
        "model is stage1",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "skip_top = 0",
        "skip_top = 20",
        "finetune-dupmae, bm25: skip_top is 20, 0",
    ),
    (
        "recipes/finetune-master.toml",
        "teacher_temperature = 1.0",
        "teacher_temperature = 4.0",
        "temperature is 4.0",
    ),
    (
        "recipes/finetune-master.toml",
        "limit = 0",
        "limit = 1000",
        "finetune-master, stage1: limit is 1000, 0",
    ),
    (
        "recipes/finetune-retromae.toml",
        "seed = 42",
        "seed = 43",
        "finetune-retromae, stage1: seed is 43, 42",
    ),
    (
        "recipes/finetune-retromae.toml",
        "grad_cache = 256",
        "grad_cache = 0",
        "grad_cache is 0, 256",
    ),
    (
        "recipes/finetune-beir.toml",
        "dropout = 0.1",
        "dropout = 0.0",
        "finetune-beir, stage1: dropout is 0.0, 0.1",
    ),
    ("recipes/finetune-nq.toml", "epochs = 40.0", "epochs = 4.0", "epochs is 4.0, 40.0"),
    (
        "recipes/finetune-cot-mote.toml",
        'activation = "log1p"',
        'activation = "relu"',
        "activation is relu, log1p",
    ),
    (
        "recipes/finetune-cot-mote.toml",
        "query_top_k = 0",
        "query_top_k = 64",
        "query_top_k is 64, 0",
    ),
    (
        "recipes/pretrain-dupmae.toml",
        "clip = 1.0",
        "clip = 0.01",
        "pretrain-dupmae, general: clip is 0.01, 1.0",
    ),
    (
        "recipes/pretrain-master.toml",
        'truncation = "window"',
        'truncation = "end"',
        "truncation is end, window",
    ),
    ("recipes/pretrain-master.toml", "per_text = 10", "per_text = 1", "per_text is 1, 10"),
    (
        "recipes/pretrain-master.toml",
        "max_new_tokens = 64",
        "max_new_tokens = 6",
        "max_new_tokens is 6, 64",
    ),
    ("recipes/pretrain-cot-mote.toml", 'decode = "both"', 'decode = "den"', "decode is den, both"),
    (
        "recipes/pretrain-cot-mote.toml",
        "stride = ",
        "stride = 1",
        "pretrain-cot-mote, spans: stride is",
    ),
    (
        "recipes/pretrain-cot-mae.toml",
        'context = "mixed"',
        'context = "random"',
        "context is random, mixed",
    ),
    (
        "recipes/pretrain-retromae.toml",
        "count_special = true",
        "count_special = false",
        "count_special is False, True",
    ),
]
"""File, its text, the fault, and what the audit says of it."""

NUMBERS = [
    (
        DUPMAE,
        '"RR@10" = "0.4258"',
        '"RR@10" = "0.4102"',
        "stage3-dev: RR@10 0.4102, but 0.4258 in DupMAE (arXiv v1)",
    ),
    (DUPMAE, '"R@1000" = "0.9893"', '"R@1000" = "0.8966"', "stage3-dev: R@1000 0.8966, but 0.9893"),
    (
        DUPMAE,
        ', "R@50" = "0.8966"',
        "",
        "stage3-dev: 0.8966 in DupMAE (arXiv v1) Table 1, DupMAE (stage 3), dev R@50",
    ),
    (DUPMAE, '"0.7083"', '"0.7095"', "stage3-dl20: nDCG@10 0.7095, but 0.7083"),
    (DUPMAE, '"RR@10" = "0.4258"', '"RR@5" = "0.4258"', "stage3-dev: RR@5 0.4258 has no cell"),
    (
        "dupmae-dagger.beir.toml",
        '"0.725"',
        '"0.653"',
        "scifact: nDCG@10 0.653, but 0.725 in DupMAE (ACL 2023) Table 3",
    ),
    ("dupmae.beir.toml", '"0.477"', '"0.475"', "mean:average-18: nDCG@10 0.475, but 0.477"),
    (
        "retromae.beir.toml",
        '"0.433"',
        '"0.4330"',
        "arguana: nDCG@10 0.4330 has more digits than 0.433",
    ),
    (
        MASTER,
        '"RR@10" = "0.343"',
        '"RR@10" = "0.354"',
        "data-10-dev: RR@10 0.354, but 34.3 in MASTER Table 7",
    ),
    (
        MASTER,
        'paper = {"RR@10" = "0.391"}',
        'paper = {"RR@10" = "0.399"}',
        "0.399, but 39.1 in MASTER Table 6",
    ),
    (
        MASTER,
        "15 % hidden from the encoder, 50",
        "50 % hidden from the encoder, 50",
        "but 37.6 in MASTER Table 9",
    ),
    (
        "retromae-ablations.msmarco-passage.toml",
        '"0.3501"',
        '"0.3496"',
        "encoder-15-dev: RR@10 0.3496, but 0.3501",
    ),
    ("master.msmarco-passage.toml", "MASTER Table 2;", "MASTER Table 3;", "no row of it"),
    (
        "cot-mote.msmarco-passage.toml",
        '"0.755"',
        '"0.729"',
        "s2-hybrid-dl19: nDCG@10 0.729, but 75.5",
    ),
    (
        "cot-mote-ablations.msmarco-passage.toml",
        '"0.384"',
        '"0.394"',
        "separate-dense-dev: RR@10 0.394, but 38.4",
    ),
]

CASES = [
    (
        "dupmae.beir.toml",
        '"nDCG@10"',
        '"nDCG@100"',
        "trec-covid: the number is of nDCG@100, but DupMAE (ACL 2023) Table 3 prints nDCG@10",
    ),
    (DUPMAE, 'mode = "hybrid"', 'mode = "dense"', "mode is dense, hybrid in DupMAE"),
    (DUPMAE, 'mode = "hybrid"', 'mode = "impact"', "mode is impact, hybrid in DupMAE"),
    (
        DUPMAE,
        "document_length = 140",
        "document_length = 64",
        "document_length is 64, 140 in the training of dupmae-stage2",
    ),
    (DUPMAE, '"RR@10" = 0.0013', '"RR@10" = 0.05', "seed_deviation: RR@10 is 0.05, 0.0013 in"),
    (
        "bm25.dpr-nq.toml",
        "tolerance = 0.0005",
        "tolerance = 0.2",
        "tolerance is 0.2, 0.0005 in recorded_cases.toml",
    ),
    (
        DUPMAE,
        'model = "dupmae-stage3"',
        'model = "dupmae-stage3"\ncompare = false',
        "stage3-dev: compare is false",
    ),
    (
        DUPMAE,
        'model = "dupmae-stage3"',
        'model = "dupmae-stage2"',
        'stage3-dev: model is "dupmae-stage2"',
    ),
    (
        "models.toml",
        'title = "DupMAE, distilled"\nrecipe = "finetune-dupmae"\nstep = "stage3"',
        'title = "DupMAE, distilled"\nrecipe = "finetune-dupmae"\nstep = "stage2"',
        'models, dupmae-stage3/entry: step is "stage2", "stage3" in recorded_cases.toml',
    ),
    (
        "dupmae-ablations.msmarco-passage.toml",
        'model = "dupmae-ot-260"',
        'model = "dupmae-ot-768"',
        'model is "dupmae-ot-768", "dupmae-ot-260" in',
    ),
    (
        "recipes/pretrain-dupmae-dagger.toml",
        '"collection:beir-trec-covid/corpus", ',
        "",
        "corpora, dupmae-dagger-pretrained/pretrained: reads is",
    ),
    (
        "models.toml",
        "Shitao/RetroMAE_MSMARCO_finetune/",
        "Shitao/RetroMAE_MSMARCO/",
        "models, retromae-msmarco-finetune/entry: url is",
    ),
    # Of other kinds.
    (
        "dupmae.beir.toml",
        "search = {query_length = 512}",
        "search = {query_length = 512, hits = 200}",
        "search: hits is 200, the default in",
    ),
    (
        "cot-mote.msmarco-passage.toml",
        'test = "dev"',
        'test = "dl19"',
        's1-dense-dev: test is "dl19", "dev" in',
    ),
    (
        "retromae.beir.toml",
        'collection = "beir-nfcorpus"',
        'collection = "beir-arguana"',
        'collection is "beir-arguana", "beir-nfcorpus" in',
    ),
    ("default.cacm.toml", "drift = 0.002", "drift = 0.2", "drift is 0.2, 0.002 in"),
    (
        "dupmae.beir.toml",
        'group = "beir-18"',
        'group = "beir-14"',
        'means, dupmae.beir/average-18: group is "beir-14"',
    ),
    ("models.toml", '"pytorch_model.bin"]', '"model.safetensors"]', "entry: files is"),
    (
        "bm25-multifield.beir.toml",
        "tolerance = 0.0001",
        "tolerance = 0.01",
        "tolerance is 0.01, 0.0001 in",
    ),
    (
        "cot-mae.msmarco-passage.toml",
        '[[case]]\nname = "dl20"',
        '[[case]]\nname = "dl20-again"',
        "cases, cot-mae.msmarco-passage/dl20 is in recorded_cases.toml and no longer in eval/",
    ),
    (
        "cot-mae.msmarco-passage.toml",
        'measures = ["RR@10"]',
        'measures = ["RR@100"]',
        'separate-dev: measures is ["RR@100"], ["RR@10"] in',
    ),
    (
        "models.toml",
        'encoder = "untied", similarity = "cls"',
        'encoder = "tied", similarity = "cls"',
        "models, cot-mae-separate/entry: set: encoder is",
    ),
]


def name_of(fault: tuple[str, str, str, str]) -> str:
    return f"{fault[0]}: {fault[2]}"


@pytest.fixture
def plant(tmp_path):
    """Puts one fault into a copy of eval/ and returns the copy."""

    def planted(file: str, old: str, new: str) -> Path:
        folder = tmp_path / "eval"
        shutil.copytree(ROOT / "eval", folder, ignore=shutil.ignore_patterns("accepted", "studies"))
        text = (folder / file).read_text(encoding="utf-8")
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
        return folder

    return planted


@pytest.mark.parametrize("fault", sample(SETTINGS, push=3), ids=name_of)
def test_a_changed_setting_is_named(plant, fault):
    *change, words = fault
    problems = audit_recipes(plant(*change)).problems
    assert any(words in problem for problem in problems), problems[:5]


@pytest.mark.parametrize("fault", sample(CASES, push=4), ids=name_of)
def test_a_changed_case_is_named(plant, fault):
    *change, words = fault
    problems = audit_recipes(plant(*change)).problems
    assert any(words in problem for problem in problems), problems[:5]


@pytest.mark.parametrize("fault", sample(NUMBERS, push=3), ids=name_of)
def test_a_changed_number_is_named(plant, papers, fault):
    *change, words = fault
    problems = audit_numbers(plant(*change), papers).problems
    assert any(words in problem for problem in problems), problems[:5]


def test_swapped_cells_of_two_rows_are_both_named(plant, papers):
    """Both numbers stand in the paper, and in the table."""
    folder = plant(MASTER, '"0.379"', '"0.376"')
    text = (folder / MASTER).read_text(encoding="utf-8")
    at = text.index("mask-50-50-retriever1-dev")
    (folder / MASTER).write_text(
        text[:at] + text[at:].replace('"0.376"', '"0.379"', 1), encoding="utf-8"
    )
    problems = audit_numbers(folder, papers).problems
    assert [p.partition(":")[0].partition("/")[2] for p in problems] == [
        "mask-15-50-retriever1-dev",
        "mask-50-50-retriever1-dev",
    ]


def test_a_setting_without_source_or_record_is_named(monkeypatch, tmp_path):
    """A new setting of a command, or a new step, is in neither file."""
    record = tmp_path / RECORD.name
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    record.write_text(
        "\n".join(line for line in lines if not line.startswith("head_lr_factor = ")),
        encoding="utf-8",
    )
    monkeypatch.setattr("audit_recipes.RECORD", record)
    problems = audit_recipes(ROOT / "eval").problems
    assert any(
        p.startswith("finetune-dupmae, stage1: head_lr_factor has no source in hyper")
        for p in problems
    )


def test_the_record_is_what_the_tool_writes(monkeypatch, tmp_path):
    record = tmp_path / RECORD.name
    monkeypatch.setattr("audit_recipes.RECORD", record)
    cases = tmp_path / CASES_RECORD.name
    monkeypatch.setattr("audit_cases.RECORD", cases)
    assert audit_main(["--record"]) == 0
    assert cases.read_text(encoding="utf-8") == CASES_RECORD.read_text(encoding="utf-8"), (
        "audit_recipes.py --record"
    )
    assert record.read_text(encoding="utf-8") == RECORD.read_text(encoding="utf-8"), (
        "audit_recipes.py --record"
    )
    settings = read_toml(record)["finetune-beir"]["stage1"]
    assert settings["eval_steps"]["origin"] == "ours: changes no update"
    assert settings["dtype"]["origin"] == "ours: the release's float16 needs a scaled loss"


@pytest.mark.parametrize(
    ("text", "printed", "holds"),
    [
        ("41.0", "0.410", True),
        ("0.410", "0.4102", True),
        ("0.705", "0.7049", True),
        ("0.410", "0.4106", False),
    ],
)
def test_a_cell_holds_a_number_at_its_digits(text, printed, holds):
    assert Cell("", "", "", text).holds(printed) is holds
