"""Every reader on bytes that nobody wrote on purpose: a value, or an error of one line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "hypothesis", reason="property-based tests need the extra: pip install 'dupmae-ir[dev]'"
)

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dupmae_ir.config import read_toml
from dupmae_ir.errors import DupmaeError
from dupmae_ir.eval.answers import read_answers
from dupmae_ir.finetune.data import read_mined, read_scores
from dupmae_ir.finetune.pairs import read_pairs
from dupmae_ir.index.changes.changes import read_ids
from dupmae_ir.index.format.manifest import META, read_meta
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run
from dupmae_ir.io.topics import read_topics
from dupmae_ir.models.checkpoints.model_config import read_config
from dupmae_ir.pretrain.corpus import read_texts
from dupmae_ir.pretrain.generation import read_rows
from dupmae_ir.search.query.filters import read_ids as read_selected

READERS: dict[str, Callable[[Path], Any]] = {
    "lines": lambda path: list(numbered_lines(path)),
    "topics": read_topics,
    "qrels": read_qrels,
    "run": read_run,
    "collection": lambda path: list(read_collection(str(path))),
    "pairs": read_pairs,
    "mined": read_mined,
    "scores": read_scores,
    "answers": read_answers,
    "texts of pre-training": lambda path: list(read_texts(path)),
    "rows of augmentation": lambda path: list(read_rows(path)),
    "ids to delete": lambda path: read_ids(str(path)),
    "ids to search in": read_selected,
    "recipe": read_toml,
    "manifest of an index": lambda path: read_meta(_in_folder(path, META)),
    "configuration of a model": lambda path: read_config(_in_folder(path, "dupmae_config.json")),
}


def _in_folder(path: Path, name: str) -> Path:
    """A folder with the file under the name that the reader looks for."""
    folder = path.with_name(f"folder of {path.name}")
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(path.read_bytes())
    return folder


KEYS = st.sampled_from(
    ["_id", "id", "qid", "text", "title", "contents", "query", "positive", "negatives", "vector"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5), min_size=1, max_size=3).map(
    lambda rows: "\n".join(map(json.dumps, rows)).encode()
)
WORDS = st.text(alphabet="q1d0Q-. \te+naif\u00a0\u2028\r\n", max_size=40).map(str.encode)
CONTENTS = st.binary(max_size=60) | OBJECTS | WORDS | (OBJECTS | WORDS).map(gzip.compress)


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=CONTENTS, ending=st.sampled_from([".jsonl", ".tsv", ".txt", ".gz"]))
def test_a_reader_returns_or_explains(
    name: str, content: bytes, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(content)
    try:
        READERS[name](path)
        message = str(path)
    except DupmaeError as e:
        message = str(e)
    assert "\n" not in message
    assert path.name in message
