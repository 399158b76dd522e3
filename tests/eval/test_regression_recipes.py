"""The recipes state every setting, agree with the papers, and shrink as a rehearsal says."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from audit_recipes import Recipes, audit_numbers, audit_recipes, stated_recipes
from audit_recipes import main as audit_main
from recipe_plan import unstated
from rehearse import REHEARSALS, judged_documents, sample_documents, sample_training, shrink_step

from dupmae_ir.errors import UsageError
from dupmae_ir.eval.regressions.cases import dependencies, load
from dupmae_ir.eval.regressions.config import PRESETS
from dupmae_ir.eval.regressions.execute import command_lines
from dupmae_ir.eval.regressions.workspace import Workspace
from dupmae_ir.finetune.stages import in_processes, plan
from dupmae_ir.io.collections import read_collection
from dupmae_ir.training.config import TrainerOptions

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "eval"


@pytest.fixture
def copy(tmp_path):
    """A copy of eval to plant mistakes in."""
    shutil.copytree(RECIPES, tmp_path / "eval")
    return tmp_path / "eval"


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("recipe", stated_recipes(RECIPES), ids=lambda p: p.stem)
def test_a_recipe_states_every_setting(recipe):
    assert unstated(recipe) == []


@pytest.mark.parametrize(
    "setting", ["query_flops", "dropout", "warmup", "sample_from_top", "unset"]
)
def test_a_setting_left_out_is_found(copy, setting):
    recipe = copy / "recipes" / "finetune-dupmae.toml"
    lines = recipe.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(f"{setting} = ")]
    recipe.write_text("\n".join(kept), encoding="utf-8")
    name = "dev" if setting == "unset" else setting
    assert {f"{stage}: {name}" for stage in ("stage1", "stage2", "stage3")} <= set(unstated(recipe))


def test_the_recipes_agree_with_the_papers():
    audit = audit_recipes(RECIPES)
    assert audit.problems == []
    assert audit.agreeing > 1000
    assert all(one.because for one in audit.deviations)


PLANTED = [
    (
        "recipes/finetune-master.toml",
        "negatives = 41",
        "negatives = 31",
        "stage3: negatives is 31, 41 in MASTER",
    ),
    (
        "recipes/finetune-master.toml",
        "accumulate = 4",
        "accumulate = 1",
        "effective_batch is 128, 512",
    ),
    (
        "recipes/finetune-master.toml",
        'mined = "{negatives2}"',
        'mined = "{negatives}"',
        "negatives_from is stage1",
    ),
    (
        "recipes/pretrain-master.toml",
        "updates = 120000",
        "updates = 12000",
        "updates is 12000, 120000",
    ),
    (
        "recipes/pretrain-master.toml",
        "accumulate = 16",
        "accumulate = 2",
        "effective_batch is 256, 2048",
    ),
    (
        "recipes/pretrain-master.toml",
        'source = "halves"',
        'source = "neighbours"',
        "is no deviation any more",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "query_flops = 0.0",
        "query_flops = 0.05",
        "query_flops is 0.05, 0.0",
    ),
    (
        "recipes/finetune-dupmae.toml",
        "dropout = 0.1  # released code: BERT's own\n",
        "",
        "finetune-dupmae: stage1: dropout is not stated",
    ),
    (
        "recipes/finetune-dupmae.toml",
        'separator = "sep"',
        'separator = "space"',
        "by space in training, by sep",
    ),
    (
        "recipes/pretrain-cot-mote.toml",
        "collection:msmarco-doc",
        "collection:dpr-nq",
        "corpus is Wikipedia, MS MARCO",
    ),
    (
        "models.toml",
        'set = {corpus = "collection:dpr-nq/corpus", ',
        "set = {",
        "corpus is MS MARCO, Wikipedia",
    ),
    (
        "hyperparameters.toml",
        'models = ["master-nq"]',
        'models = ["master-qn"]',
        "no model is named master-qn",
    ),
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The problems that the audit finds in a copy with all of PLANTED."""
    folder = tmp_path_factory.mktemp("planted") / "eval"
    shutil.copytree(RECIPES, folder)
    for file, old, new, _ in PLANTED:
        replace_in(folder / file, old, new)
    return audit_recipes(folder).problems


@pytest.mark.parametrize("words", [row[3] for row in PLANTED if row[3]])
def test_a_planted_difference_is_reported(planted, words):
    assert any(words in problem for problem in planted), planted[:5]


def test_printed_numbers_stand_in_their_cells(papers):
    numbers = audit_numbers(RECIPES, papers)
    assert numbers.problems == []
    assert numbers.looked_up > 440
    assert "\n".join(numbers.lines()) in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


def test_the_page_of_the_audit_is_up_to_date(tmp_path):
    page = ROOT / "docs" / "recipes.md"
    made = tmp_path / "recipes.md"
    shutil.copyfile(page, made)
    assert audit_main(["--write", str(made)]) == 0
    assert made.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), (
        "python tools/audit_recipes.py --write"
    )


def test_presets_differ_where_text_and_code_do():
    recipes = Recipes(RECIPES)
    steps = {
        p: {s.name: s for s in recipes.plan(recipes.models["dupmae-stage3"], p)} for p in PRESETS
    }
    assert steps["release"]["stage3"].setting("distill") == "kl-mean"
    assert steps["paper"]["stage3"].setting("distill") == "soft-ce"
    updates = {p: recipes.plan(recipes.models["master-pretrained"], p)[-1].updates for p in PRESETS}
    assert updates == {"release": 80_000, "paper": 120_000}


def test_a_preset_changes_what_a_workspace_runs_and_where(tmp_path):
    model = "master-pretrained"
    plain, paper = (Workspace(RECIPES, tmp_path, preset=preset) for preset in (None, "paper"))
    assert plain.steps(plain.models[model])[-1].config.steps == 80_000
    assert paper.steps(paper.models[model])[-1].config.steps == 120_000
    assert plain.model_folder(model) != paper.model_folder(model)


def test_a_preset_cannot_set_what_is_no_input(tmp_path):
    recipe = tmp_path / "r.toml"
    shutil.copyfile(RECIPES / "recipes" / "pretrain-retromae.toml", recipe)
    replace_in(recipe, "[presets.paper]\n", "[presets.paper]\nmask_ratio = 0.1\n")
    with pytest.raises(Exception, match="a preset sets mask_ratio, which is no input"):
        plan(recipe, tmp_path, {"preset": "paper"})


def test_the_plan_of_a_model(capsys):
    assert audit_main(["--plan", "master-distil"]) == 0
    text = capsys.readouterr().out
    assert "25,000 updates, 128 x 4 accumulated = 512 per update" in text
    assert "negatives: 41 of the top 200 by stage2 (dense)" in text
    assert "updates 80000" in text
    assert "GPU-hours at 100 TFLOP/s" in text
    assert "MISMATCH" not in text


def test_the_plan_flags_a_mismatch(copy, capsys):
    replace_in(copy / "recipes" / "finetune-master.toml", "negatives = 41", "negatives = 31")
    assert audit_main(["--plan", "master-distil", "--recipes", str(copy)]) == 0
    assert "negatives 31, but 41 in MASTER's code" in capsys.readouterr().out


def test_a_stage_needs_only_the_models_that_it_reads():
    workspace = Workspace(RECIPES, Path("out"))
    assert workspace.references["dupmae-stage2"] == ["dupmae-pretrained"]
    assert workspace.references["dupmae-stage3"] == ["dupmae-pretrained", "deberta-v3-base"]


def test_a_given_model_ends_the_preparation():
    """Nothing before it is downloaded or trained, nor printed as a command."""
    (case,) = (c for c in load(RECIPES)["dupmae.beir"].cases if c.name == "scifact")
    workspace = Workspace(RECIPES, Path("out"), given={case.model: Path("mine")})
    assert workspace.model(case.model) == Path("mine")
    assert [line.split()[1] for line in command_lines(case, workspace)] == [
        "collections",
        "encode",
        "search",
        "eval",
    ]
    workspace = Workspace(RECIPES, Path("out"), given={"dupmae-pretrained": Path("mine")})
    assert dependencies("dupmae-stage2", workspace.models, workspace.references) == [
        "dupmae-pretrained",
        "dupmae-stage2",
    ]


def test_eight_processes_share_the_batches_of_every_recipe(tmp_path):
    """The updates are those of one process; only steps that train get the number."""
    processes = 8
    one = Workspace(RECIPES, tmp_path)
    several = Workspace(RECIPES, tmp_path, processes=processes)
    trained = 0
    for model in (m for m in one.models.values() if m.recipe and m.recipe != "tiny"):
        for alone, step in zip(one.steps(model), several.steps(model), strict=True):
            assert in_processes(step, 1) == alone
            assert ("--processes" in step.words) == isinstance(step.config, TrainerOptions)
            if isinstance(step.config, TrainerOptions):
                whole = alone.config.share
                own = step.config.share
                assert (
                    own.batch_size * own.accumulate * processes
                    == whole.batch_size * whole.accumulate
                )
                trained += 1
    assert trained > 20


def test_a_batch_that_cannot_be_shared_names_its_step(tmp_path):
    workspace = Workspace(RECIPES, tmp_path, processes=7)
    with pytest.raises(UsageError, match=r"step general.*: `processes` 7 .* use one of 1, 2, 4"):
        workspace.steps(workspace.models["dupmae-pretrained"])


@pytest.mark.parametrize("scale", REHEARSALS)
def test_a_rehearsal_changes_only_what_it_says(scale, tmp_path):
    workspace = Workspace(RECIPES, tmp_path)
    rehearsal = REHEARSALS[scale]
    allowed = {"steps", "batch_size", "accumulate", "held_out", "limit", "max_new_tokens"}
    trained = 0
    for name in (
        "dupmae-stage3",
        "master-distil",
        "master-pretrained",
        "cot-mote-s2",
        "retromae-nq-ance",
    ):
        for step in workspace.steps(workspace.models[name]):
            small = shrink_step(step, rehearsal)
            values = {k: v for k, v in vars(small.config).items() if v != getattr(step.config, k)}
            assert values.keys() <= allowed, step.name
            if "batch_size" in values:
                trained += 1
                assert small.config.steps == rehearsal.updates
    assert trained > 5


def test_a_sample_keeps_what_is_judged_and_a_share_of_the_rest(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    target = tmp_path / "sample.jsonl"
    corpus.write_text(
        "".join(json.dumps({"_id": f"d{i}", "text": "x"}) + "\n" for i in range(5000))
    )
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("q1\t0\td7\t1\nq2\t0\td4999\t1\n")
    assert judged_documents(qrels) == {"d7", "d4999"}
    sample_documents(corpus, target, 500, 5000, {"d7", "d4999"})
    kept = [json.loads(line)["_id"] for line in target.read_text().splitlines()]
    assert {"d7", "d4999"} <= set(kept)
    assert 400 < len(kept) < 600
    assert kept == sorted(kept, key=lambda d: int(d[1:]))


def test_a_sample_keeps_the_format_of_its_lines(tmp_path):
    """Tevatron's keys, and MS MARCO's four columns: id, URL, title, body."""
    titled = tmp_path / "corpus.jsonl.gz"
    documents = tmp_path / "corpus.tsv"
    with gzip.open(titled, "wt") as f:
        f.writelines(
            json.dumps({"docid": f"{n}", "title": "t", "text": "x"}) + "\n" for n in range(100)
        )
    documents.write_text("".join(f"D{n}\thttp://x/{n}\tt\tbody\n" for n in range(100)))
    for source, needed in ((titled, "7"), (documents, "D7")):
        target = tmp_path / f"sample{source.suffixes[0]}"
        sample_documents(source, target, 10, 100, {needed})
        made = [document.docid for document in read_collection(target)]
        assert needed in made
        assert 3 < len(made) < 25
    assert "http://x/7" in target.read_text()


def test_a_sample_of_training_queries_is_whole_queries(tmp_path):
    judged = tmp_path / "qrels.train.tsv"
    target = tmp_path / "few.tsv"
    judged.write_text("".join(f"{q}\t0\td{q}{k}\t1\n" for q in range(50) for k in range(2)))
    sample_training(judged, target, 5)
    rows = [line.split() for line in target.read_text().splitlines()]
    assert len(rows) == 10
    assert len({row[0] for row in rows}) == 5
    array = tmp_path / "nq.json"
    array.write_text(json.dumps([{"question": f"q{i}"} for i in range(30)]))
    sample_training(array, tmp_path / "few.json", 4)
    assert len(json.loads((tmp_path / "few.json").read_text())) == 4
