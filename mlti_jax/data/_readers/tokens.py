"""Texts as tokens: the input of the networks that read them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mlti_jax._internal import extras
from mlti_jax._internal.checks import check_range
from mlti_jax.errors import InputError

LONGEST = 512  # tokens; as many positions as ALBERT has
WORDLLAMA_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"


def load_tokenizer(path: pathlib.Path) -> Any:
    """Reads a tokenizer, in the format of the package tokenizers, from its file."""
    tokenizers = extras.require("tokenizers", "text")
    if not path.is_file():
        raise InputError(
            f"there is no tokenizer {path}; give the folder of a Hugging Face"
            " checkpoint that has a tokenizer.json"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more special
        raise InputError(
            f"{path} is no tokenizer ({error}); download it again"
        ) from error


def token_encoder(
    tokenizer: Any, max_tokens: int, special_tokens: bool
) -> Callable[[Iterable[str]], dict[str, np.ndarray]]:
    """Encodes titles as numbers of tokens, cut or padded to one length.

    Args:
      tokenizer: from `load_tokenizer`; its settings of padding and cutting are changed.
      max_tokens: T, special tokens included.
      special_tokens: whether to add those that the tokenizer marks a sequence with.

    Returns:
      A function from M titles to `{"ids": int32 [M, T], "mask": bool [M, T]}`.
    """
    added = tokenizer.num_special_tokens_to_add(False) if special_tokens else 0
    check_range("max_tokens", max_tokens, LONGEST, added + 1)
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)

    def encode(texts: Iterable[str]) -> dict[str, np.ndarray]:
        texts = [str(text) for text in texts]
        found = tokenizer.encode_batch(texts, add_special_tokens=special_tokens)
        ids = np.zeros((len(found), max_tokens), np.int32)
        mask = np.zeros((len(found), max_tokens), bool)
        for row, tokens in enumerate(found):
            ids[row, : len(tokens.ids)] = tokens.ids
            mask[row, : len(tokens.ids)] = True
        return {"ids": ids, "mask": mask}

    return encode


def wordllama_tokenizer() -> Any:
    """The tokenizer that belongs to wordllama's vectors, from the installed package."""
    path = extras.package_file("wordllama", WORDLLAMA_TOKENIZER, "text")
    return load_tokenizer(path)
