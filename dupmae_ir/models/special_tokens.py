"""Vocabulary ids that take no part in the sparse (OT) representation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ExcludedIds(NamedTuple):
    """Sorted vocabulary ids."""

    terms: list[int]  #: ids that never have an OT weight
    tokens: list[int]  #: ids of the tokens that are left out of pooling


def excluded_ids(
    tokenizer: PreTrainedTokenizerBase, include_sep: bool = False, include_cls: bool = False
) -> ExcludedIds:
    """The ids excluded from the OT part of a model with this tokenizer.

    Excluded as terms are the special tokens and, in BERT vocabularies, ``[unusedN]``. Excluded from pooling are the
    special tokens except [UNK] and [MASK] (a masked word is an ordinary token); ``include_sep`` and ``include_cls``
    pool [SEP] and [CLS] as well.
    """
    special = set(tokenizer.all_special_ids)
    unused = {i for token, i in tokenizer.get_vocab().items() if token.startswith("[unused")}
    pooled = {tokenizer.mask_token_id, tokenizer.unk_token_id}
    pooled |= {tokenizer.sep_token_id} if include_sep else set()
    pooled |= {tokenizer.cls_token_id} if include_cls else set()
    return ExcludedIds(sorted(special | unused), sorted(special - pooled))
