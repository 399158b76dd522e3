"""The cache of encodings and the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.serve.catalogue import CachingLexicalEncoder, cached
from dupmae_ir.serve.config import TOKEN_VARIABLE, ServeConfig
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import LexicalEncoder


class Counting(HashingEncoder):
    calls: list[list[str]]

    def encode_queries(self, texts: Any, cap: int = 1024) -> Any:
        self.calls.append(list(texts))
        return super().encode_queries(texts, cap)


class Lexical(HashingEncoder):
    def encode_collection(self, documents: Any, separator: Any = None) -> Any:
        raise NotImplementedError

    def for_collection(self, collection: Any) -> Any:
        return Lexical(seed=collection)

    def term_names(self, text: str) -> dict[str, str]:
        return {"w1": text}


@pytest.mark.parametrize(("dim", "vocabulary"), [(16, 512), (16, None), (None, 512)])
def test_cached_encodings_are_the_encoders(dim: int | None, vocabulary: int | None) -> None:
    inner = Counting(dim, vocabulary)
    inner.calls = []
    encoder = cached(inner, 2)
    for asked in (["a b", "c", "a b"], ["c", "d e f"], [], ["!!", "a b"]):
        found = encoder.encode_queries(asked)
        expected = HashingEncoder(dim, vocabulary).encode_queries(asked)
        for ours, theirs in ((found.cls, expected.cls), (found.ot, expected.ot)):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                np.testing.assert_array_equal(
                    *(
                        np.asarray(x.todense() if hasattr(x, "todense") else x)
                        for x in (ours, theirs)
                    )
                )
    assert [c for c in inner.calls if c] == [["a b", "c"], ["d e f"], ["!!"]]
    encoder.trim()
    encoder.encode_queries(["a b", "!!", "c"])
    assert inner.calls[-1] == ["c"]
    assert encoder.encoded == 5


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_encodings_on_several_threads_are_the_same(threads: int) -> None:
    inner = Counting(16, 512)
    inner.calls = []
    texts = [f"{'word ' * n} {n}" for n in range(7)]
    found = cached(inner, 10, threads).encode_queries(texts)
    expected = HashingEncoder(16, 512).encode_queries(texts)
    assert found.cls is not None
    assert found.ot is not None
    np.testing.assert_array_equal(found.cls, expected.cls)
    assert (found.ot != expected.ot).nnz == 0
    assert len(inner.calls) == min(threads, 7)
    assert sorted(text for call in inner.calls for text in call) == sorted(texts)


def test_another_cap_is_another_encoding() -> None:
    encoder = cached(HashingEncoder(), 10)
    both = [encoder.encode_queries(["a b c"], cap).ot for cap in (1, 10)]
    assert [ot.nnz for ot in both if ot is not None] == [1, 3]


def test_a_lexical_encoder_stays_one() -> None:
    encoder = cached(Lexical(), 10)
    assert isinstance(encoder, CachingLexicalEncoder)
    assert isinstance(encoder, LexicalEncoder)
    assert encoder.term_names("x") == {"w1": "x"}
    assert encoder.for_collection(5).digest == Lexical(seed=5).digest  # type: ignore[arg-type]
    assert not isinstance(cached(HashingEncoder(), 10), LexicalEncoder)


def test_other_addresses_need_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        assert ServeConfig(index=("I",), host=host).token() is None
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.org", ""):
        with pytest.raises(UsageError, match="needs a token"):
            ServeConfig(index=("I",), host=host).token()
    monkeypatch.setenv(TOKEN_VARIABLE, "0123456789abcdef")
    assert ServeConfig(index=("I",), host="0.0.0.0").token() == "0123456789abcdef"
    (tmp_path / "token").write_text("from-a-file-and-long\n")
    assert (
        ServeConfig(index=("I",), token_file=str(tmp_path / "token")).token()
        == "from-a-file-and-long"
    )
    for bad in ("short", "has a blank in the middle", "\u00fcmlaut-of-many-characters", ""):
        (tmp_path / "token").write_text(bad)
        with pytest.raises(InputError, match="a token is 16 or more"):
            ServeConfig(index=("I",), token_file=str(tmp_path / "token")).token()
    with pytest.raises(InputError, match="no such file"):
        ServeConfig(index=("I",), token_file=str(tmp_path / "none")).token()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"index": ()}, "give one of `index`, `indexes`"),
        ({"max_queries": 10, "queue": 5}, "exceeds `queue` 5"),
        ({"cors": ("example.org",)}, "expected an origin"),
        ({"cors": ("https://example.org/path",)}, "expected an origin"),
        ({"cors": ("*",)}, "expected an origin"),
        ({"index": ("a/I", "b/I")}, "two indexes are named 'I'"),
        ({"index": ("a", "b"), "bm25_index": "c"}, "belongs to one index"),
        ({"mcp": True, "mcp_http": True}, "applies only without `mcp`"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ServeConfig(**{"index": ("I",), **settings})


def test_names_of_indexes() -> None:
    config = ServeConfig(index=("a/docs", "new=b/docs", "c=d=e", "./x/y=z"))
    assert config.named == [
        ("docs", Path("a/docs")),
        ("new", Path("b/docs")),
        ("c", Path("d=e")),
        ("y=z", Path("./x/y=z")),
    ]
