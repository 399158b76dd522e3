"""The measurements of the code encoder: records by query, means and tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import code_encoder
import pytest
import torch
from question_sets import QuestionSet
from safetensors.torch import load_file, save_file
from support.lexical_models import make_lexical

from dupmae_ir.finetune.stages import plan
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.loading import load_model


def write_records(folder: Path, variant: str, values: list[float]) -> None:
    (folder / variant).mkdir(parents=True)
    record = {
        mode: {str(query): value for query, value in enumerate(values)}
        for mode in code_encoder.MODES
    }
    for name in code_encoder.COLLECTIONS:
        (folder / variant / f"{name}.json").write_text(json.dumps(record))


def test_variants_are_compared_with_the_control(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    values = [0.1 * (query % 7) for query in range(60)]
    write_records(tmp_path, "control", values)
    write_records(
        tmp_path, "direct", [value + 0.05 + 0.001 * (n % 3) for n, value in enumerate(values)]
    )
    write_records(tmp_path, "retromae", [value + 0.1 * (-1) ** n for n, value in enumerate(values)])
    assert code_encoder.main(["compare", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "control    test 0.2900" in printed
    better, same = printed.splitlines()[-2:]
    assert better.startswith("direct against control on test: +0.0510, p ")
    assert float(better.rpartition(" ")[2]) < 1e-6
    # The larger p is not multiplied: it is the last of Holm's steps.
    assert same == "retromae against control on test: +0.0000, p 1"


def test_missing_records_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert code_encoder.main(["compare", str(tmp_path)]) == 2
    assert "has no records of the variant control" in capsys.readouterr().err
    write_records(tmp_path, "control", [0.5, 0.6])
    (tmp_path / "control" / "cacm.json").unlink()
    assert code_encoder.main(["compare", str(tmp_path)]) == 2
    assert "cacm.json: is missing" in capsys.readouterr().err


def test_a_collection_is_measured_by_both_parts(tmp_path: Path):
    found = QuestionSet()
    for number, word in enumerate(["cat", "dog", "sun", "mat"]):
        found.documents[f"d{number}"] = ("", f"the {word} and the {word}")
        found.questions.append((word, [f"d{number}"]))
    found.write(tmp_path / "test")
    record = code_encoder.measure(tmp_path / "test", make_lexical(tmp_path))
    assert set(record) == {"vectors", "hybrid"}
    assert list(record["hybrid"]) == ["0", "1", "2", "3"]
    assert all(0 <= value <= 1 for by_query in record.values() for value in by_query.values())


def test_the_average_is_half_way_to_the_embedded_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    start = make_lexical(tmp_path)
    trained = tmp_path / "trained"
    shutil.copytree(start, trained)
    weights = load_file(trained / "model.safetensors")
    moved = {name: weight + torch.rand_like(weight) for name, weight in weights.items()}
    save_file(moved, trained / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(code_encoder, "model_folder", lambda _: start)
    words = ["average", "--model", str(trained), "--output", str(tmp_path / "half")]
    assert code_encoder.main(words) == 0
    states = [
        load_model(folder, need_ot=False)[0].state_dict()
        for folder in (start, trained, tmp_path / "half")
    ]
    assert not all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for name, weight in states[2].items():
        assert torch.allclose(weight, (states[0][name] + states[1][name]) / 2)
    assert load_encoder(tmp_path / "half").encode_queries(["cat"]).ot is not None


CODE_INPUTS = {"code": "pairs", "general": "pairs.jsonl"}


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("code-encoder", CODE_INPUTS),
        ("code-encoder-retromae", CODE_INPUTS),
        ("reranker", {"pairs": "pairs.jsonl"}),
    ],
)
def test_every_recipe_has_steps_that_can_be_run(name: str, inputs: dict[str, str], tmp_path: Path):
    recipe = Path(code_encoder.__file__).with_name(f"{name}.toml")
    steps, _ = plan(recipe, tmp_path, inputs)
    assert len(steps) >= 2
