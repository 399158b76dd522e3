"""A rehearsal of the regressions from end to end, on two processes: download, pre-training, three stages, verdicts.

The model is the experiment's from-scratch checkpoint, which a local server offers like a released one. Cases of every
kind of model and of every mode run through the command, are accepted, and must then be found unchanged.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from accept_cases import main as accept

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

from dupmae_ir.eval.regressions.__main__ import main
from dupmae_ir.eval.regressions.tiny import write_collection

pytestmark = [pytest.mark.nightly, pytest.mark.jvm]

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

MODELS = """
[embedded]
title = "the model of the package"
embedded = true

[tiny]
title = "two layers"
tiny = true

[released]
title = "the checkpoint of the experiment"
url = "{url}/released"
files = {files}

[staged]
title = "three stages of fine-tuning after pre-training"
recipe = "staged"
step = "stage3"

[files.pairs]
url = "{url}/pairs.jsonl"
"""

CASES = """
title = "A rehearsal"
tier = "small"
collection = "folder:syllables"
measures = ["nDCG@10", "R@100"]
case = [
    {name = "bm25", mode = "bm25"},
    {name = "embedded", mode = "impact", model = "embedded"},
    {name = "tiny", mode = "dense", model = "tiny"},
    {name = "released", mode = "dense", model = "released", encode = {parts = "cls"}},
    {name = "staged", mode = "hybrid", model = "staged", paper = {"nDCG@10" = "0.999"}, source = "none"},
]
"""

STAGED = """
[inputs]
base = "model:released"
corpus = "collection:folder:syllables/corpus"
pairs = "file:pairs"

[common.finetune]
model = "{pretrained}"
ot = "mlm"
cls_dim = 24
top_k = 24
query_length = 16
document_length = 48
batch_size = 8
negatives = 2
steps = 4
learning_rate = 1e-4
log_steps = 2
device = "cpu"
threads = 1

[[step]]
name = "pretrained"
command = "pretrain"
method = "dupmae"
model = "{base}"
corpus = ["{corpus}"]
length = 32
batch_size = 4
accumulate = 4
steps = 4
log_steps = 2
eval_steps = 2
learning_rate = 1e-4
held_out = 12
device = "cpu"
threads = 1

[[step]]
name = "stage1"
command = "finetune"
pairs = ["{pairs}"]
group_size = 1

[[step]]
name = "negatives"
command = "finetune.mine"
pairs = ["{pairs}"]
by = "model"
model = "{stage1}"
depth = 8
device = "cpu"
threads = 1

[[step]]
name = "stage2"
command = "finetune"
mined = "{negatives}"

[[step]]
name = "teacher"
command = "finetune.cross_encoder"
model = "{base}"
mined = "{negatives}"
group_size = 3
length = 48
batch_size = 1
accumulate = 4
steps = 4
log_steps = 2
device = "cpu"
threads = 1

[[step]]
name = "scores"
command = "finetune.score"
teacher = "cross-encoder"
model = "{teacher}"
mined = "{negatives}"
length = 48
device = "cpu"
threads = 1

[[step]]
name = "stage3"
command = "finetune"
mined = "{negatives}"
scores = "{scores}"
distill = "kl"
"""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def options(tmp_path):
    """The options of a rehearsal whose downloads come from a server in this process."""
    write_collection(tmp_path / "data" / "syllables")
    served = tmp_path / "served"
    restore = [
        sys.executable,
        EXPERIMENTS / "mae_checkpoint.py",
        "restore",
        EXPERIMENTS / "checkpoints" / "stage0.seed0",
    ]
    subprocess.run([*restore, served / "released"], check=True, cwd=EXPERIMENTS.parent)
    (tmp_path / "data" / "syllables" / "pairs.jsonl").rename(served / "pairs.jsonl")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    recipes = tmp_path / "recipes"
    (recipes / "recipes").mkdir(parents=True)
    url = f"http://127.0.0.1:{server.server_port}"
    (recipes / "models.toml").write_text(MODELS.format(url=url, files=json.dumps(FILES)))
    (recipes / "rehearsal.toml").write_text(CASES)
    (recipes / "recipes" / "staged.toml").write_text(STAGED)
    yield {
        "recipes": recipes,
        "collections": tmp_path / "data",
        "cache": tmp_path / "cache",
        "output": tmp_path / "runs",
    }
    server.shutdown()
    server.server_close()


def words(options: dict[str, Path], *more: str) -> list[str]:
    return [
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
        "--threads",
        "1",
        *more,
    ]


def cases(capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    return {c["case"]["name"]: c for c in json.loads(capsys.readouterr().out)["cases"]}


def test_every_kind_of_case_on_two_processes(options, tmp_path, capsys):
    assert main(["run", *words(options, "--processes", "2", "--quiet", "--json")]) in (0, 3)
    measured = cases(capsys)
    assert list(measured) == ["bm25", "embedded", "tiny", "released", "staged"]
    for name, case in measured.items():
        assert case["result"]["problems"] == [], name
        assert 0 < case["result"]["values"]["nDCG@10"] < 0.999, name
    assert {v["against"] for v in measured["staged"]["verdicts"]} >= {"paper"}
    folder = options["output"] / "training" / "staged"
    for step in ("pretrained", "stage1", "stage2", "teacher", "stage3"):
        record = json.loads((folder / step / "training.json").read_text())
        assert record["settings"]["processes"] == 2, step
    assert record["result"]["last"]["loss_distill"] > 0
    # Accepted, everything is found as it was; nothing is trained or searched again.
    assert accept([*words(options)]) == 0
    capsys.readouterr()
    assert main(["run", *words(options, "--processes", "2", "--quiet", "--json")]) in (0, 3)
    for name, case in cases(capsys).items():
        accepted = [v["status"] for v in case["verdicts"] if v["against"] == "accepted"]
        assert accepted, name
        assert set(accepted) <= {"OK", "OKISH"}, name
    # A given model ends the preparation: elsewhere, nothing is downloaded and nothing trained.
    given = {**options, "output": tmp_path / "again", "cache": tmp_path / "nothing"}
    main(
        [
            "run",
            "rehearsal/staged",
            *words(given, "--model", f"staged={folder / 'stage3'}", "--quiet", "--json"),
        ]
    )
    assert cases(capsys)["staged"]["result"]["values"] == measured["staged"]["result"]["values"]
    assert not (tmp_path / "again" / "training").exists()
    assert not (tmp_path / "nothing").exists()
