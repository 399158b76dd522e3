from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dupmae_ir.errors import InputError
from dupmae_ir.io.qrels import read_qrels

TREC = "1 0 a 2\n1 0 b -1\n007 Q0 a 0\n"
BEIR = "query-id\tcorpus-id\tscore\n1\ta\t2\n1\tb\t-1\n007\ta\t0\n"
WANTED = {"1": {"a": 2, "b": -1}, "007": {"a": 0}}


@pytest.mark.parametrize(
    "content",
    [
        TREC.encode(),
        TREC.replace(" ", "\t")
        .replace("\n", "\t\r\n")
        .encode(),  # as MS MARCO's document judgements
        BEIR.encode(),
        BEIR.split("\n", 1)[1].encode(),
        b"\xef\xbb\xbf" + BEIR.replace("\n", "\r\n").encode(),
        gzip.compress(TREC.encode(), mtime=0),
        gzip.compress(BEIR.encode(), mtime=0),
        (TREC + "1 0 a 2\n\n").encode(),
    ],
)
def test_every_layout_reads_alike(tmp_path, content):
    (tmp_path / "q").write_bytes(content)
    assert read_qrels(tmp_path / "q") == WANTED


def test_beir_folder_picks_the_split(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(BEIR)
    (tmp_path / "qrels" / "dev.tsv").write_text("1\tz\t1\n")
    assert read_qrels(tmp_path) == WANTED == read_qrels(tmp_path / "qrels")
    assert read_qrels(tmp_path, split="dev") == {"1": {"z": 1}}
    with pytest.raises(InputError, match=r"without qrels/train\.tsv"):
        read_qrels(tmp_path, split="train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "q is empty"),
        (b"query-id\tcorpus-id\tscore\n", "a header and no judgements"),
        (b"1 a 1\n", "q:1: expected 'qid 0 docid grade'"),
        (b"1 0 a 1\n1 0 b\n", "q:2: expected 4 columns as in the first line, got 3"),
        (b"1 0 a yes\n", "q:1: grade 'yes' is not an integer"),
        (b"1 0 a 1\n1 0 b 1.5\n", r"q:2: grade '1\.5' is not an integer"),
        (b"1\ta\t1\n1\tb\tx\n", "q:2: grade 'x' is not an integer"),
        (b"1 0 a 1700000000\n", "q:1: grade 1700000000 is beyond 1000"),
        (b"1\ta b\t1\n", "q:1: an id that is empty or contains white space"),
        (b"1 0 a 1\n1 0 a 2\n", "q:2: document 'a' of query '1' has grade 2 here and 1 before"),
        (b"1 0 \xe9 1\n", "q:1: not UTF-8"),
    ],
)
def test_bad_judgements_name_file_and_line(tmp_path, content, message):
    (tmp_path / "q").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_qrels(tmp_path / "q")


def test_missing(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_qrels(tmp_path / "absent")


def test_real_judgements(shared_data: Path):
    files = sorted((shared_data / "topics-and-qrels").glob("qrels.*"))
    assert files
    for file in files:
        with gzip.open(file, "rt") as f:
            pairs = {(q, d) for q, _, d, _ in map(str.split, f)}
        assert sum(map(len, read_qrels(file).values())) == len(pairs), file.name
    assert len(read_qrels(shared_data / "scifact")) == 300
