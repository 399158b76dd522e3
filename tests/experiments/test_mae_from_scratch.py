"""The registered experiment: its plan, data, read-outs and decision."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import mae_checkpoint
import numpy as np
import pytest
import torch
from mae_data import prepare
from mae_from_scratch import Plan, Step, read_settings, run_all, selected
from mae_readouts import probe_words, search_set, write_record
from mae_tables import Comparison, compare, decide, report
from safetensors.torch import load_file, save_file

from dupmae_ir.errors import InputError
from dupmae_ir.eval.significance import Interval

DOCS = Path(__file__).resolve().parents[2] / "experiments" / "mae-from-scratch.md"
RULE = read_settings()["decision"]


@pytest.fixture
def plan(tmp_path):
    return Plan(read_settings(), tmp_path / "data", tmp_path / "out")


def tuned(plan):
    plan.records.mkdir(parents=True)
    for rate, score in ((1e-4, 0.2), (3e-4, 0.3)):
        record = {
            "settings": {"learning_rate": rate, "temperature": 1.0},
            "sets": {"dev": {"scores": {"cls": {"nDCG@10": score}}}},
        }
        (plan.records / f"readout.tune.{rate:g}.json").write_text(json.dumps(record))


def test_every_step_needs_earlier_steps_only_and_has_its_own_output(plan):
    steps = plan.steps()
    before = set()
    for step in steps:
        assert before.issuperset(step.after), step.name
        before.add(step.name)
    assert len({s.done for s in steps}) == len({s.name for s in steps}) == len(steps)


def test_every_step_has_a_valid_command(plan):
    tuned(plan)
    commands = {step.name: " ".join(step.words()) for step in plan.steps()}
    assert "--batch-size 64" in commands["stage0.seed0"]  # 32 in each of
    assert "--processes 2" in commands["stage0.seed0"]
    assert "--init-embeddings corpus" in commands["stage0.seed0"]
    assert "classic_books" in commands["stage0.seed0"]
    assert "classic_books" not in commands["stage1.mlm.seed0"]
    assert "--decoder-weight 0.0" in commands["stage1.bow.seed0"]
    assert "--learning-rate 0.0003 --temperature" not in commands["stage1.bow.seed0"]
    assert "--learning-rate 0.0003" in commands["stage2.dupmae.500.seed0.2"]


def test_a_stored_checkpoint_is_restored_instead_of_trained(tmp_path):
    model = tmp_path / "model"
    stored = tmp_path / "stored"
    out = tmp_path / "out"
    model.mkdir()
    weights = {"weight": torch.tensor([0.1, -3.0]), "ids": torch.arange(3)}
    save_file(weights, model / "model.safetensors")
    (model / "training.json").write_text("{}")
    assert mae_checkpoint.main(["store", str(model), str(stored / "stage0.seed0")]) == 0
    assert load_file(stored / "stage0.seed0" / "model.safetensors")["weight"].dtype == torch.float16
    plan = Plan(read_settings(), tmp_path / "data", out, stored=stored)
    (step,) = selected(plan.steps(), ["stage0.seed0"])
    assert run_all([step], [step], 1, out / "logs", quiet=True) == []
    restored = load_file(plan.model("none", 0) / "model.safetensors")
    assert torch.equal(restored["weight"], weights["weight"].half().float())
    assert torch.equal(restored["ids"], weights["ids"])


def test_weights_that_float16_cannot_hold_are_not_stored(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    save_file({"weight": torch.tensor([1e6])}, tmp_path / "model" / "model.safetensors")
    assert mae_checkpoint.main(["store", str(tmp_path / "model"), str(tmp_path / "stored")]) == 2
    assert "not finite" in capsys.readouterr().err
    assert not (tmp_path / "stored").exists()


def test_the_branches_differ_in_the_objective_only(plan):
    steps = {s.name: s for s in plan.steps()}
    plain, retromae = (steps[f"stage1.{m}.seed0"].words() for m in ("mlm", "retromae"))
    assert {a for a, b in zip(plain, retromae, strict=True) if a != b} == {
        "mlm",
        str(plan.home / "stage1.mlm.seed0"),
    }


def test_the_registered_page_has_the_amounts_of_the_settings():
    settings = read_settings()
    page = " ".join(DOCS.read_text(encoding="utf-8").split())
    for value in (
        settings["stage0"]["steps"],
        settings["stage1"]["steps"],
        settings["methods"]["mlm-time"]["steps"],
    ):
        assert f"{value:,} updates" in page
    for size, amounts in settings["sizes"].items():
        assert f"{int(size):,}" in page
        assert str(amounts["steps"]) in page
    assert f"above {RULE['gap']} nats" in page
    assert f"+{RULE['margin']}" in page


def test_unknown_steps_are_refused(plan):
    with pytest.raises(InputError, match="--list prints"):
        selected(plan.steps(), ["stage9"])


def command(name, folder, code="", after=()):
    done = folder / name
    body = f"import pathlib, sys; {code or f'pathlib.Path({str(done)!r}).touch()'}"
    return Step(name, done, lambda: [sys.executable, "-c", body], after)


def test_finished_steps_are_skipped_and_those_that_need_a_failed_one_are_reported(tmp_path):
    (tmp_path / "old").touch()
    steps = [
        command("old", tmp_path, "sys.exit('run again')"),
        command("bad", tmp_path, "sys.exit(3)", ("old",)),
        command("good", tmp_path, "", ("old",)),
        command("late", tmp_path, "", ("bad", "good")),
    ]
    failed = run_all(steps, steps, 2, tmp_path / "logs", quiet=True)
    assert [line.partition(":")[0] for line in failed] == ["bad", "late"]
    assert "status 3" in failed[0]
    assert "needs bad" in failed[1]
    assert (tmp_path / "good").is_file()
    repaired = [steps[0], command("bad", tmp_path), *steps[2:]]
    assert run_all(repaired, repaired, 1, tmp_path / "logs", quiet=True) == []


# ---- Data


def pair(kind, number):
    passage = {
        "id": f"p{number}",
        "title": "",
        "text": f"passage {number} " + "word " * (number % 7),
    }
    return {"query": f"query {number}", "positive": passage, "source": "s", "kind": kind}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    (folder / "pairs").mkdir(parents=True)
    (folder / "set").mkdir()
    (folder / "set" / "corpus.jsonl").write_text("{}\n")
    dev = [pair("heading", n) for n in range(10)] + [pair("weak", n) for n in range(10, 12)]
    train = [pair("heading", n) for n in range(20, 25)] + [pair("weak", 25)]
    pool = [
        {"_id": r["positive"]["id"], "title": "", "text": r["positive"]["text"]}
        for r in dev + train
    ]
    for name, rows in (("train", train), ("dev", dev), ("corpus", pool)):
        with gzip.open(folder / "pairs" / f"{name}.jsonl.gz", "wt") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    return folder


SETTINGS = {
    "left_out": ["weak"],
    "mined": 3,
    "dev": {"queries": 6, "others": 4},
    "collections": ["set"],
}


def test_dev_has_its_answers_among_other_passages(data, tmp_path):
    assert prepare(data, tmp_path / "out", SETTINGS) == {"pairs": 5, "dev_queries": 6, "dev": 10}
    documents = [
        json.loads(line)["_id"]
        for line in (tmp_path / "out" / "dev" / "corpus.jsonl").read_text().split("\n")[:-1]
    ]
    judged = (tmp_path / "out" / "dev" / "qrels" / "test.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[1] for line in judged} < set(documents)
    assert len(judged) == 6


def test_a_missing_file_is_named(data, tmp_path):
    (data / "pairs" / "dev.jsonl.gz").unlink()
    with pytest.raises(InputError, match=r"dev\.jsonl\.gz: no such file"):
        prepare(data, tmp_path / "out", SETTINGS)


# ---- Read-outs


class Words:
    """An encoder whose [CLS] vector is the bag of words of a text, or noise."""

    def __init__(self, noise=False):
        from types import SimpleNamespace

        self.noise = noise
        self.settings = SimpleNamespace(document_length=50)
        self.tokenizer = self

    def __len__(self):
        return 400

    def __call__(self, texts, **_):
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}

    def encode_documents(self, texts):
        import scipy.sparse as sp

        from dupmae_ir.types import Representation

        bags = np.zeros((len(texts), 400), np.float32)
        for bag, text in zip(bags, texts, strict=True):
            bag[[int(word) for word in text.split()]] = 1
        random = np.random.default_rng(0).standard_normal(bags.shape).astype(np.float32)
        return Representation(random if self.noise else bags, sp.csr_matrix(bags))

    def encode_collection(self, documents):
        return self.encode_documents([d.text for d in documents])

    encode_queries = encode_documents


def test_the_probe_finds_the_words_that_the_vector_has():
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.choice(400, 20, replace=False))) for _ in range(700)]
    found = probe_words(Words(), texts, Words().encode_documents(texts).cls, 600, 100)
    noise = probe_words(Words(), texts, Words(noise=True).encode_documents(texts).cls, 600, 100)
    assert found["words"] > 0.9 > 0.2 > noise["words"]
    assert found["prior"] == noise["prior"] < 0.2


def test_search_scores_each_part_and_their_sum(tmp_path):
    (tmp_path / "qrels").mkdir()
    rows = [("a", "1 2 3"), ("b", "4 5 6"), ("c", "1 7 8")]
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in rows)
    )
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "1 2"}) + "\n")
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    result, stored = search_set(Words(), tmp_path, ["nDCG@10", "R@100"])
    assert stored.cls.shape == (3, 400)
    assert result["queries"] == ["q"]
    assert result["per_query"]["sum"] == {"nDCG@10": [1.0], "R@100": [1.0]}
    assert set(result["scores"]) == {"cls", "ot", "sum"}


def test_a_record_has_one_line_for_each_list(tmp_path):
    record = {
        "sets": {"dev": {"queries": ["a", "b"], "per_query": {"cls": [0.1, 1.0], "ot": []}}},
        "é": 1,
    }
    write_record(tmp_path / "new" / "record.json", record)
    text = (tmp_path / "new" / "record.json").read_text(encoding="utf-8")
    assert json.loads(text) == record
    assert '"cls": [0.1, 1.0],' in text


# ---- Decision


def outcome(method, size, mean, low, high, p):
    return Comparison(method, size, mean, Interval(low, high), p)


@pytest.mark.parametrize(
    ("compared", "gaps", "answer"),
    [
        ([outcome("r", 500, 0.02, 0.01, 0.03, 0.01)], {"r": 0.5}, "shown"),
        ([outcome("r", 30000, 0.02, 0.01, 0.03, 0.01)], {"r": 0.5}, "undecided"),
        (
            [outcome("r", 500, 0.02, -0.01, 0.05, 0.2), outcome("r", 4000, 0, -0.01, 0.005, 1)],
            {"r": 0.5},
            "undecided",
        ),
        ([outcome("r", s, 0.0, -0.009, 0.009, 0.9) for s in (500, 4000)], {"r": 0.5}, "refuted"),
        ([outcome("r", s, 0.0, -0.009, 0.009, 0.9) for s in (500, 4000)], {"r": 0.1}, "undecided"),
        ([outcome("r", 500, 0.0, -0.009, 0.009, 0.9)], {"r": 0.5}, "undecided"),
    ],
)
def test_the_decision_follows_the_rule(compared, gaps, answer):
    assert decide(compared, gaps, RULE).startswith(answer)


def write_records(folder, gain):
    """Read-outs of masked LM and RetroMAE with a difference of ``gain`` in [CLS]."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    scores = rng.random(200) / 2
    for method, more in (("mlm", 0.0), ("retromae", gain)):
        for size in (0, 500, 4000):
            values = np.clip(scores + more + rng.normal(0, 0.02, 200), 0, 1).tolist()
            part = {"nDCG@10": values, "R@100": values}
            mean = {"nDCG@10": float(np.mean(values)), "R@100": float(np.mean(values))}
            parts = ("cls", "ot", "sum")
            one = {
                "queries": [],
                "scores": dict.fromkeys(parts, mean),
                "per_query": dict.fromkeys(parts, part),
            }
            last = {"eval_loss": 4.0, "eval_loss_mlm": 4.0}
            if method == "retromae":
                last |= {"eval_loss_decoder": 4.5, "eval_gap_decoder": 0.5}
            record = {
                "settings": {"method": method, "seed": 0, "size": size, "again": 0},
                "sets": {"dev": one},
                "tokens": 20_000_000,
                "held_out": [last],
                "probe": {"words": 0.3, "prior": 0.1},
            }
            (folder / f"readout.stage.{method}.{size}.json").write_text(json.dumps(record))


@pytest.mark.parametrize(("gain", "answer"), [(0.05, "shown"), (-0.01, "refuted at this scale")])
def test_the_report_has_the_tables_and_the_decision(gain, answer, tmp_path):
    write_records(tmp_path / "records", gain)
    page = report(tmp_path / "records")
    assert f"Decision: {answer}" in page
    assert "| RetroMAE | 20.0 M | 4.000 | 4.500 | 0.500 |" in page


def test_methods_are_compared_on_the_seeds_that_both_have(tmp_path):
    from mae_tables import read_records

    write_records(tmp_path / "records", 0.05)
    records = read_records(tmp_path / "records")
    other = json.loads(json.dumps(records["retromae", 500][0]))
    other["settings"]["again"] = 7
    other["sets"]["dev"]["per_query"]["cls"]["nDCG@10"] = [0.0] * 200
    records["retromae", 500].append(other)
    assert compare(records, ["retromae"], [500])[0].mean == pytest.approx(0.05, abs=0.01)


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(InputError, match="no read-outs"):
        report(tmp_path)
