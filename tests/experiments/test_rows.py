"""systems.toml: every row and budget is valid, and rows differ by what they say alone."""

from __future__ import annotations

import dataclasses

import pytest
from rows import FILE, LAST, Experiment, checked, commands
from systems import Driver, selected

from dupmae_ir.config import read_toml
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.errors import InputError, UnknownName
from dupmae_ir.search.config import SearchConfig

BUDGETS = sorted(
    name for name, settings in read_toml(FILE)["budgets"].items() if "pretrain" in settings
)
"""Those that train."""
PROMISED = {
    "bm25",
    "minilm",
    "fused-rrf",
    "fused-min-max",
    "none",
    "mlm",
    "retromae",
    "dupmae",
    "dupmae-dagger",
    "master",
    "cot-mae",
    "cot-mote",
    "cls-only",
    "ot-only",
    "cls-decoding",
    "ot-decoding",
    "cls-ot-384-260",
    "cls-full",
    "ot-768",
    "bow-1",
    "log1p",
    "first-stage3",
    "second-stage3",
    "scratch",
    "scratch-dupmae",
    *(f"cap-{2**k}" for k in range(5, 11)),
    *(f"level-{k}" for k in range(4, 9)),
}


def driver(budget, tmp_path):
    return Driver(Experiment.read(budget), tmp_path, quiet=True)


def steps_of(made, row, seed=0):
    """All steps of a row, the third stage too, by name; pre-trainings under their model's folder."""
    home = made.home / "data" / "base"
    found = {}
    for name in made._chain(row.pretrained):
        recipe = made.pretraining_recipe(name, seed)
        found |= {f"pretrain {name}": commands(recipe, recipe.parent)[0].config}
        home = recipe.parent / "model"
    recipe = made.row_recipe(row, seed, home)
    return found | {step.name: step.config for step in commands(recipe, recipe.parent, LAST[True])}


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_row_resolves_to_valid_commands(budget, tmp_path):
    made = driver(budget, tmp_path)
    rows = made.experiment.rows
    assert rows.keys() >= PROMISED
    for row in rows.values():
        assert sum(map(bool, (row.reference, row.of, row.best))) <= 1
        if row.of:
            source = rows[row.of]
            assert (source.of, source.best, source.reference) == ("", 0, "")
            settings = {"index": ["i"], "topics": "t", "output": "o", "hybrid": True}
            settings |= made.experiment.budget.settings("search") | row.search
            checked(SearchConfig, row.name, **settings)
            continue
        if row.reference or row.best:
            continue
        assert steps_of(made, row)  # options are checked when they are built
        assert made.plan(row, 0)[-1].startswith("dupmae_ir.finetune ")
    checked(
        EncodeConfig, budget, corpus="c", index="i", **made.experiment.budget.settings("encode")
    )
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("budget", BUDGETS)
def test_methods_differ_only_in_pretraining(budget, tmp_path):
    """The same text, updates and rows of a batch; the same fine-tuning, but for what the row names."""
    made = driver(budget, tmp_path)
    systems = [r for r in made.experiment.rows.values() if r.table == "systems"]
    steps = {row.name: steps_of(made, row) for row in systems}
    first = steps["retromae"]["pretrain retromae"]
    for row in systems:
        own = {name: c for name, c in steps[row.name].items() if name.startswith("pretrain")}
        for name, config in own.items():
            if name != "pretrain dupmae-dagger":
                same = ("corpus", "model", "steps", "length", "learning_rate", "seed", "accumulate")
                assert [getattr(config, k) for k in same] == [getattr(first, k) for k in same], name
                # A draw of CoT-MAE fills two rows.
                assert (
                    config.batch_size * (2 if config.method == "cot-mae" else 1) == first.batch_size
                )
        for stage in (name for name in steps["none"] if name.startswith("stage")):
            ours, theirs = (dataclasses.asdict(steps[n][stage]) for n in (row.name, "none"))
            differing = {k for k in ours if ours[k] != theirs[k]} - {
                "output",
                "model",
                "mined",
                "scores",
            }
            assert differing == set(row.stage)


def test_updates_are_a_multiple_of_the_logging_interval(tmp_path):
    """So that the tokens of the log are all that were read."""
    for budget in BUDGETS:
        made = driver(budget, tmp_path)
        for name in made.experiment.data["pretrained"]:
            config = commands(made.pretraining_recipe(name, 0), tmp_path)[0].config
            assert config.steps % config.log_steps == 0


def test_seeds_reach_every_training(tmp_path):
    made = driver("gpu", tmp_path)
    row = made.experiment.rows["dupmae-dagger"]
    assert made.experiment.seeds(row) == [0, 1, 2]
    assert made.experiment.seeds(made.experiment.rows["log1p"]) == [0]
    steps = steps_of(made, row, seed=2)
    trained = [name for name in steps if name.startswith(("pretrain", "stage", "teacher"))]
    assert len(trained) == 6
    assert {steps[name].seed for name in trained} == {2}
    assert "seed2" in steps["pretrain dupmae-dagger"].init_from


def test_rows_from_scratch_read_nothing_of_the_base(tmp_path):
    made = driver("cores", tmp_path)
    for name in ("scratch", "scratch-dupmae"):
        lines = " ".join(made.plan(made.experiment.rows[name], 0))
        assert f"{tmp_path}/data/scratch" in lines
        assert f"{tmp_path}/data/base" not in lines


def test_rows_that_read_others_come_last(tmp_path):
    made = driver("gpu", tmp_path)
    names = [row.name for row in selected(made.experiment, [])]
    assert names.index("first-stage3") > names.index("cot-mote")
    assert names.index("cap-32") > names.index("first-stage3")


def test_a_budget_may_omit_tables():
    whole = Experiment.read("cores")
    some = dataclasses.replace(
        whole, budget=dataclasses.replace(whole.budget, tables=["references", "caps"])
    )
    assert {row.table for row in selected(some, [])} == {"references", "caps"}
    assert {row.table for row in selected(whole, [])} > {"references", "caps"}


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="gpu"):
        Experiment.read("gpus")
    with pytest.raises(UnknownName, match="dupmae"):
        selected(Experiment.read("gpu"), ["dupmea"])
    broken = tmp_path / "broken.toml"
    broken.write_text(
        FILE.read_text() + '\n[rows.new]\ntable = "systems"\ntitle = "x"\npretraned = "dupmae"\n'
    )
    with pytest.raises(InputError, match="row new: no setting named 'pretraned'"):
        _ = Experiment.read("gpu", path=broken).rows
