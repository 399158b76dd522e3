"""The full tier from download to report, with the real recipes on synthetic stand-ins from a local server."""

from __future__ import annotations

import io
import json
import threading
from contextlib import redirect_stdout
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest
import rehearse
from support.fake_models import write_models, write_training
from support.fakes import put_licensed, stand_in, write_standins
from support.seeds import sample

from dupmae_ir.collections import find
from dupmae_ir.config import read_toml
from dupmae_ir.eval.regressions.__main__ import main
from dupmae_ir.eval.regressions.cases import load, read_models
from dupmae_ir.finetune import stages

RECIPES = Path(__file__).resolve().parents[2] / "eval"

COMPLETED = "completed on a synthetic stand-in collection"
USED = (
    "msmarco-passage-titled",
    "msmarco-passage",
    "msmarco-doc",
    "dpr-nq",
    "beir-nfcorpus",
    "beir-arguana",
    "beir-bioasq",
)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory, shared_data):
    """(base URL, folder) of a server with collections, models and training data."""
    folder = tmp_path_factory.mktemp("mirror")
    write_standins(folder, shared_data / "topics-and-qrels", USED)
    texts = {
        name: [(docid, text) for docid, (_, text) in stand_in(find(name)).documents.items()]
        for name in ("msmarco-passage-titled", "msmarco-doc")
    }
    write_models(folder, "\n".join(text for _, text in texts["msmarco-passage-titled"]))
    write_training(folder, texts["msmarco-passage-titled"], texts["msmarco-doc"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(mirror, tmp_path, monkeypatch, capsys):
    """Runs cases; returns the exit status and the JSON report by case."""
    monkeypatch.setenv("DUPMAE_IR_CACHE", str(tmp_path / "cache"))

    def call(*names: str, scale: str = "") -> tuple[int, dict[str, dict]]:
        url, folder = mirror
        options = [
            "--output",
            str(tmp_path / "runs"),
            "--catalogue",
            str(folder / "catalogue.toml"),
            "--threads",
            "1",
        ]
        if scale:
            status = rehearse.main(
                [*names, *options, "--mirror", url, "--quiet", "--scale", scale, "--json"]
            )
            return status, {
                c["case"]["id"]: c for c in json.loads(capsys.readouterr().out)["cases"]
            }
        status = main(["run", *names, *options, "--mirror", url, "--quiet"])
        capsys.readouterr()
        assert main(["report", *names, *options, "--format", "json"]) == 0
        return status, {c["case"]["id"]: c for c in json.loads(capsys.readouterr().out)["cases"]}

    return call


def test_released_checkpoints_from_download_to_report(run, mirror, tmp_path):
    put_licensed(mirror[1], tmp_path / "cache")
    names = (
        "retromae.msmarco-passage/finetune-dev",
        "retromae.beir/nfcorpus",
        "retromae.beir/arguana",
        "retromae.beir/bioasq",
        "retromae.beir/robust04",
    )
    status, report = run(*names)
    assert status == 0
    for name in names[:4]:
        assert report[name]["verdicts"][0]["reason"].startswith(COMPLETED), report[name]
        assert report[name]["result"]["problems"] == []
        assert all(0 <= v <= 1 for v in report[name]["result"]["values"].values())
    assert set(report[names[0]]["result"]["values"]) == {
        "RR@10",
        "RR@100",
        "R@10",
        "R@100",
        "R@1000",
    }
    # ArguAna: queries of 512 word pieces, and self-retrieval is removed.
    assert report[names[2]]["result"]["key"]["search"]["query_length"] == 512
    assert report[names[2]]["result"]["key"]["search"]["remove_query"] is True
    assert report[names[4]]["result"] is None  # licensed, and not placed in the cache


def test_a_case_whose_model_cannot_be_downloaded_is_skipped(run, mirror):
    path = (
        mirror[1] / "huggingface.co/Shitao/RetroMAE_MSMARCO_distill/resolve/main/pytorch_model.bin"
    )
    kept = path.read_bytes()
    path.unlink()
    try:
        status, report = run("retromae.msmarco-passage/distill-dev")
    finally:
        path.write_bytes(kept)
    assert status == 0
    assert report["retromae.msmarco-passage/distill-dev"]["result"] is None


REHEARSED = (
    "dupmae.msmarco-passage/stage3-dev",
    "dupmae.beir/nfcorpus",
    "dupmae.msmarco-doc/stage2-dl19",
    "retromae.dpr-nq/ance",
    "retromae-ablations.msmarco-passage/default-dev",
    "master.msmarco-passage/retriever-distil-dl20",
    "master.dpr-nq/retriever2",
    "cot-mote.msmarco-passage/s2-hybrid-dl19",
)


SYSTEMS = {
    "retromae": "retromae.msmarco-passage/dpr-dev",
    "dupmae": "dupmae.msmarco-passage/stage2-dev",
    "master": "master.msmarco-passage/retriever1-dev",
    "cot-mote": "cot-mote.msmarco-passage/s1-hybrid-dev",
}
"""One case of each system."""


@pytest.fixture
def in_this_process(monkeypatch):
    """The steps of recipes run by their commands' functions here, which saves each the start of a process."""

    def call(step: stages.Step, quiet: bool) -> dict[str, object]:
        package, *words = step.words
        printed = io.StringIO()
        with redirect_stdout(printed):
            module = import_module(package)
            front = import_module(f"{package}.__main__") if hasattr(module, "__path__") else module
            status = front.main([*words, "--json", "--quiet"])
        assert status == 0, step.words
        return json.loads(printed.getvalue().strip().splitlines()[-1])

    monkeypatch.setattr(stages, "_call", call)


@pytest.mark.parametrize("name", sample(list(SYSTEMS.values()), push=1))
def test_a_rehearsal_in_this_process(run, in_this_process, tmp_path, name):
    """A system's real recipe: pre-training, mining, one stage, index and search."""
    status, report = run(name, scale="tiny")
    assert report[name]["verdicts"][0]["reason"].startswith(COMPLETED), report[name]
    assert status == 0
    trained = list((tmp_path / "runs/scale-tiny/training").glob("finetune-*/stage*/training.json"))
    assert trained
    for path in trained:
        made = json.loads(path.read_text())["settings"]
        separator = {"sep": " [SEP] ", "space": " "}[made["title_separator"]]
        assert made["query_flops"] == 0
        assert (
            json.loads((path.parent / "dupmae_config.json").read_text())["title_separator"]
            == separator
        )
        assert made["title_separator"] == ("space" if ".beir/" in name else "sep")


def test_every_system_is_rehearsed():
    """The four systems of the papers, each by a case that the recipes train."""
    known = {case.id: case for regression in load(RECIPES).values() for case in regression.cases}
    models = read_models(read_toml(RECIPES / "models.toml"), RECIPES)
    assert {models[known[name].model].recipe for name in SYSTEMS.values()} == {
        f"finetune-{name}" for name in SYSTEMS
    }


@pytest.mark.nightly
@pytest.mark.parametrize("name", REHEARSED)
def test_rehearsals(run, name):
    """Every step as a command of its own, as a user runs them."""
    status, report = run(name, scale="tiny")
    assert report[name]["verdicts"][0]["reason"].startswith(COMPLETED), report[name]
    assert status == 0
