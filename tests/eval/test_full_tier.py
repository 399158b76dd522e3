"""The full tier from download to report, on look-alikes served by this machine: the recipes as they are."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from standin_models import write_models, write_training
from standins import put_licensed, stand_in, write_standins

from dupmae_ir.collections import find
from dupmae_ir.eval.regressions.__main__ import main

USED = ("msmarco-passage-titled", "msmarco-doc", "dpr-nq", "beir-nfcorpus", "beir-arguana", "beir-bioasq")


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory, shared_data):
    """(base URL, folder) of collections, models and training data."""
    folder = tmp_path_factory.mktemp("mirror")
    write_standins(folder, shared_data / "topics-and-qrels", USED)
    texts = {
        name: [(docid, text) for docid, (_, text) in stand_in(find(name)).documents.items()]
        for name in ("msmarco-passage-titled", "msmarco-doc")
    }
    write_models(folder, "\n".join(text for _, text in texts["msmarco-passage-titled"]))
    write_training(folder, texts["msmarco-passage-titled"], texts["msmarco-doc"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(mirror, tmp_path, monkeypatch, capsys):
    """Carry regressions out; returns status and everything the report says of them, by case."""
    monkeypatch.setenv("DUPMAE_IR_CACHE", str(tmp_path / "cache"))

    def call(*names: str) -> tuple[int, dict[str, dict]]:
        url, folder = mirror
        options = ["--output", str(tmp_path / "runs"), "--catalogue", str(folder / "catalogue.toml"), "--threads", "1"]
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
    status, told = run(*names)
    assert status == 0
    for name in names[:4]:
        assert told[name]["verdicts"][0]["reason"].startswith("ran whole on a look-alike collection"), told[name]
        assert told[name]["result"]["problems"] == []
        assert all(0 <= v <= 1 for v in told[name]["result"]["values"].values())
    assert set(told[names[0]]["result"]["values"]) == {"RR@10", "RR@100", "R@10", "R@100", "R@1000"}
    # ArguAna: queries of 512 word pieces, and no topic finds itself.
    assert told[names[2]]["result"]["key"]["search"]["query_length"] == 512
    assert told[names[2]]["result"]["key"]["search"]["remove_query"] is True
    assert told[names[4]]["result"] is None  # licensed, and nobody has put it there


def test_a_broken_download_names_the_file_and_the_row_is_skipped(run, mirror):
    path = mirror[1] / "huggingface.co/Shitao/RetroMAE_MSMARCO_distill/resolve/main/pytorch_model.bin"
    kept = path.read_bytes()
    path.unlink()
    try:
        status, told = run("retromae.msmarco-passage/distill-dev")
    finally:
        path.write_bytes(kept)
    assert status == 0
    assert told["retromae.msmarco-passage/distill-dev"]["result"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "dupmae.msmarco-passage/stage3-dev",
        "dupmae.msmarco-doc/stage2-dl19",
        "dupmae-ablations.msmarco-passage/ot-decoding-dev",
        "retromae.dpr-nq/ance",
        "retromae-ablations.msmarco-passage/basic-2-dev",
        "master.msmarco-passage/retriever-distil-dl20",
        "master-ablations.msmarco-passage/shared-decoder-retriever1-dev",
        "cot-mote.msmarco-passage/s2-hybrid-dl19",
    ],
)
def test_recipes_that_train_first(run, name):
    status, told = run(name)
    assert status == 0
    assert told[name]["verdicts"][0]["reason"].startswith("ran whole on a look-alike collection"), told[name]
