"""Adaptation: pseudo-queries, the split, the gains by hand, both verdicts, kills, refusals."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
import torch
from support.lexical_models import make_lexical
from support.tiny_models import WORDS, tiny_config, tiny_tokenizer

from dupmae_ir.adapt.__main__ import main
from dupmae_ir.adapt.config import AdaptConfig
from dupmae_ir.adapt.model import Start
from dupmae_ir.adapt.queries import draw, pseudo_queries
from dupmae_ir.adapt.run import Split, decide, gains, scores, split
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.types import Document

SENTENCES = "The quick cats sat. Lazy dogs run over the mat. Brown lists sort heaps and graphs."


def test_each_kind_takes_its_text_out_of_the_passage():
    text = f"# Sorting heaps\n{SENTENCES}\n## Graphs and trees\nTrees are graphs without any cycle in them at all."
    found = pseudo_queries(Document("d", text, "Cats and dogs"))
    by_kind = {kind: [q for q in found if q.kind == kind] for kind in ("title", "heading", "sentence")}
    assert [(q.query, q.passage.title, q.passage.text) for q in by_kind["title"]] == [("Cats and dogs", "", text)]
    assert [(q.query, q.passage.text) for q in by_kind["heading"]] == [
        ("Sorting heaps", SENTENCES),
        ("Graphs and trees", "Trees are graphs without any cycle in them at all."),
    ]
    assert len(by_kind["sentence"]) == 3
    for q in by_kind["sentence"]:
        assert q.query not in q.passage.text
        assert q.passage.title == "Cats and dogs"


def test_texts_in_lower_case_and_without_sentences():
    spaced = "the quick cats sat . lazy dogs run over the mat . brown lists sort heaps ."
    assert [q.query for q in pseudo_queries(Document("d", spaced))][1] == "lazy dogs run over the mat ."
    words = [f"word{i}" for i in range(20)]
    found = pseudo_queries(Document("d", " ".join(words)))
    assert [(q.query, q.passage.text, q.kind) for q in found] == [
        (" ".join(words[:8]), " ".join(words[8:]), "words"),
        (" ".join(words[8:16]), " ".join(words[:8] + words[16:]), "words"),
    ]


def test_what_is_too_short_is_no_pseudo_query():
    assert pseudo_queries(Document("d", "The cats.", "The")) == []
    assert pseudo_queries(Document("d", "Cats sat.", "Cats and dogs")) == []  # nothing left to find
    assert [q.kind for q in pseudo_queries(Document("d", SENTENCES, "Cats"))] == ["sentence"] * 3
    assert pseudo_queries(Document("d", SENTENCES, "Cats and dogs"), ("heading",)) == []
    kinds = {
        draw(Document("d", SENTENCES, "Cats and dogs"), ("title", "sentence"), random.Random(i)).kind for i in range(9)
    }
    assert kinds == {"title", "sentence"}


def collection(count=60):
    rng = random.Random(4)

    def text():
        return ". ".join(" ".join(rng.choices(WORDS, k=7)).capitalize() for _ in range(3)) + "."

    return [Document(f"d{i}", text(), " ".join(rng.choices(WORDS, k=3)) if i % 3 else "") for i in range(count)]


def test_held_out_documents_are_not_trained_on():
    documents = collection()
    held = split(documents, 9, 20, ("title", "sentence"), 0)
    trained, asked = {d.docid for d in held.training}, {q.passage.docid for q in held.held_out}
    assert (len(asked), len(trained), len(held.others)) == (9, 51, 20)
    assert not trained & asked
    assert {d.docid for d in held.others} <= trained
    assert all(q.kind == "title" for q in held.held_out if q.passage.docid in {d.docid for d in documents if d.title})
    assert split(documents, 9, 20, ("title", "sentence"), 0) == held
    assert split(documents, 9, 20, ("title", "sentence"), 1) != held
    assert len(split(documents, 500, 20, ("sentence",), 0).held_out) == 12  # a fifth


def test_gains_by_hand():
    rng = np.random.default_rng(0)
    similarities = np.round(rng.normal(size=(5, 30)), 1)  # ties
    for row, gain in zip(similarities, gains(similarities), strict=True):
        number = int(np.flatnonzero((similarities == row).all(1))[0])
        order = sorted(range(30), key=lambda d: (-row[d], d))
        rank = 1 + order.index(number)
        assert gain == (1 / math.log2(1 + rank) if rank <= 10 else 0.0)


def test_a_gain_counts_only_beyond_chance():
    before = {"hybrid": [0.0] * 20}
    assert decide(before, {"hybrid": [1.0, 0.5] * 10}, 0.05).better
    assert not decide(before, {"hybrid": [1.0] + [0.0] * 19}, 0.05).better
    assert not decide({"hybrid": [1.0, 0.5] * 10}, before, 0.05).better
    assert not decide(before, before, 0.05).better


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A collection, a model of the papers' form and a lexical one."""
    home = tmp_path_factory.mktemp("adapt")
    rows = [{"_id": d.docid, "title": d.title, "text": d.text} for d in collection(330)]
    (home / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    lm = BertForMaskedLM(tiny_config(initializer_range=0.1))
    model = Retriever(lm, torch.nn.Linear(24, 8, bias=False), *excluded_ids(tokenizer)).eval()
    save_model(home / "mlm", model, tokenizer, ModelConfig(document_length=48, query_length=16, top_k=9))
    make_lexical(home, document_length=48)
    (home / "model").rename(home / "lexical")
    return home


FLAGS = ["--steps", 4, "--batch-size", 6, "--length", 32, "--query-length", 16, "--held-out", 20, "--pool", 30]
FLAGS += ["--log-steps", 1, "--save-steps", 1, "--device", "cpu", "--threads", 1, "--quiet"]


def adapt(folder, model, output, *more):
    flags = ["--corpus", folder / "corpus.jsonl", "--model", folder / model, "--output", output, *FLAGS, *more]
    return main([*map(str, flags)])


@pytest.mark.parametrize("model", ["mlm", "lexical"])
def test_without_a_gain_the_start_is_returned(folder, tmp_path, capsys, model):
    assert adapt(folder, model, tmp_path / "out", "--level", 1e-9, "--learning-rate", 0.01) == 0
    said = capsys.readouterr().out
    assert "no gain beyond chance" in said
    assert "so this is the start, unchanged" in said
    assert folder_digest(tmp_path / "out") == folder_digest(folder / model)
    result = json.loads((tmp_path / "out" / "made.json").read_text())["result"]
    assert result["kept"] == "start"
    assert result["adapted"] != result["start"]
    assert adapt(folder, model, tmp_path / "out", "--level", 1e-9, "--learning-rate", 0.01, "--json") == 0
    assert json.loads(capsys.readouterr().out)["kept"] == "start"


@pytest.mark.parametrize("model", ["mlm", pytest.param("lexical", marks=pytest.mark.nightly)])
def test_a_better_model_is_kept_with_its_form(folder, tmp_path, monkeypatch, model):
    monkeypatch.setattr(
        "dupmae_ir.adapt.run.decide", lambda *_: decide({"hybrid": [0.0, 0.0]}, {"hybrid": [1.0, 0.5]}, 1.0)
    )
    assert adapt(folder, model, tmp_path / "out", "--learning-rate", 0.01) == 0
    assert read_config(tmp_path / "out") == read_config(folder / model)
    assert "| kept | adapted |" in (tmp_path / "out" / "README.md").read_text()
    assert (tmp_path / "out" / "training" / "losses.png").is_file()
    before, after = (TextEncoder.load(f) for f in (folder / model, tmp_path / "out"))
    texts = collection(5)
    old, new = before.encode_collection(texts), after.encode_collection(texts)
    assert np.abs(old.cls - new.cls).max() > 1e-3
    assert ((old.ot != new.ot).nnz == 0) == (model == "lexical")  # a closed form does not change


@pytest.mark.parametrize(
    "moment",
    ["dupmae_ir.adapt.run._Adaptation._trainer", pytest.param("dupmae_ir.adapt.run.decide", marks=pytest.mark.nightly)],
)
def test_interrupted_between_its_steps_it_ends_with_the_same_result(folder, tmp_path, monkeypatch, moment):
    """The measurements of the interrupted run are read, not made again."""
    assert adapt(folder, "lexical", tmp_path / "at-once") == 0
    with monkeypatch.context() as patch:
        patch.setattr(moment, lambda *_: exec("raise KeyboardInterrupt"))
        assert adapt(folder, "lexical", tmp_path / "out") == 130
    assert adapt(folder, "lexical", tmp_path / "out") == 0
    one, other = (json.loads((tmp_path / name / "made.json").read_text())["result"] for name in ("at-once", "out"))
    assert {**one, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.nightly
def test_the_anchor_holds_the_model(folder, tmp_path):
    documents = collection(5)
    moved = []
    for weight in (0, 1000):
        out = tmp_path / str(weight)
        config = AdaptConfig(
            corpus=str(folder / "corpus.jsonl"),
            model=str(folder / "mlm"),
            output=str(out),
            steps=6,
            batch_size=6,
            length=32,
            learning_rate=0.003,
            anchor_weight=weight,
            held_out=20,
            pool=0,
            level=1.0,
            device="cpu",
            threads=1,
            log_steps=1,
            save_steps=6,
            quiet=True,
        )
        trained = trained_model(config)
        start = TextEncoder.load(folder / "mlm").encode_collection(documents)
        found = trained.encode_collection(documents)
        moved.append((np.abs(found.cls - start.cls).mean(), abs(found.ot - start.ot).mean()))
    assert moved[1][0] < 0.7 * moved[0][0]
    assert moved[1][1] < 0.7 * moved[0][1]


def trained_model(config):
    """The model before the verdict."""
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        save = Start.save
        patch.setattr(Start, "save", lambda self, made: kept.append(save(self, made)) or made)
        patch.setattr(
            "dupmae_ir.adapt.run.decide", lambda *_: decide({"hybrid": [0.0, 0.0]}, {"hybrid": [1.0, 0.5]}, 1.0)
        )
        from dupmae_ir.adapt.run import run

        assert run(config)["kept"] == "adapted"
    assert kept
    return TextEncoder.load(config.output)


def test_scores_are_those_of_a_search_in_the_pool(folder):
    documents = collection(40)
    held = split(documents, 8, 20, ("title", "sentence"), 0)
    found = scores(folder / "mlm", held, "float32", "cpu")
    encoder = TextEncoder.load(folder / "mlm")
    pool = [q.passage for q in held.held_out] + held.others
    rows = encoder.encode_collection(pool)
    for number, asked in enumerate(held.held_out):
        query = encoder.encode_queries([asked.query])
        dense, impact = rows.cls @ query.cls[0], (rows.ot @ query.ot.T).toarray()[:, 0]
        for part, values in (("dense", dense), ("impact", impact), ("hybrid", dense + impact)):
            rank = 1 + int((values > values[number] + 1e-6).sum())
            wanted = 1 / math.log2(1 + rank) if rank <= 10 else 0.0
            near = np.abs(np.delete(values, number) - values[number]).min() < 1e-5
            assert near or found[part][number] == pytest.approx(wanted)
    assert isinstance(held, Split)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--query-weight", 0, "--masked-weight", 0], "leaves nothing to train"),
        (["--length", 600], "--length 600"),
        (["--kinds", "heading"], "give 0 held-out pseudo-queries, 10 are needed"),
        (["--limit", 30], "30 documents give 6 held-out pseudo-queries"),
        (["--corpus", "-"], "can be read only once"),
    ],
)
def test_misuse_is_one_line(folder, tmp_path, capsys, more, says):
    assert adapt(folder, "mlm", tmp_path / "out", *more) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_adapted_is_refused(folder, tmp_path, capsys):
    assert adapt(folder, "nowhere", tmp_path / "out") == 2
    assert "no such model folder" in capsys.readouterr().err
