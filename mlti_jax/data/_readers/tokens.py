"""Tokenizers: titles as the token ids that text backbones take."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mlti_jax._internal import extras
from mlti_jax._internal.checks import check_range
from mlti_jax.errors import InputError

MAX_TOKENS = 512  # number of positions of ALBERT
WORDLLAMA_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"

Encoder = Callable[[Iterable[str]], dict[str, np.ndarray]]


def load_tokenizer(path: pathlib.Path) -> Any:
    """Read a file of the `tokenizers` package.

    Raises:
      InputError: if the file is missing or damaged, or the package is not installed.
    """
    tokenizers = extras.require("tokenizers", "text")
    if not path.is_file():
        raise InputError(
            f"tokenizer {path} not found; expected the folder of a Hugging Face"
            " checkpoint with a tokenizer.json"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # The package raises no more specific type.
        raise InputError(
            f"can't read {path} as a tokenizer ({error}); download it again"
        ) from error


def token_encoder(tokenizer: Any, max_tokens: int, special_tokens: bool) -> Encoder:
    """Return an encoder of texts as token ids, truncated or padded to one length.

    Args:
      tokenizer: from `load_tokenizer`; its padding and truncation are changed in place.
      max_tokens: length T, special tokens included.
      special_tokens: whether to add the tokenizer's start and end tokens.

    Returns:
      A function from M texts to `{"ids": int32 [M, T], "mask": bool [M, T]}`.

    Raises:
      InputError: if `max_tokens` is out of range.
    """
    added = tokenizer.num_special_tokens_to_add(False) if special_tokens else 0
    check_range("max_tokens", max_tokens, MAX_TOKENS, added + 1)
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)

    def encode(texts: Iterable[str]) -> dict[str, np.ndarray]:
        texts = [str(text) for text in texts]
        encoded = tokenizer.encode_batch(texts, add_special_tokens=special_tokens)
        ids = np.zeros((len(encoded), max_tokens), np.int32)
        mask = np.zeros((len(encoded), max_tokens), bool)
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens.ids)] = tokens.ids
            mask[row, : len(tokens.ids)] = True
        return {"ids": ids, "mask": mask}

    return encode


def wordllama_encoder(max_tokens: int) -> Encoder:
    """Return an encoder with the tokenizer of the installed package wordllama."""
    path = extras.package_file("wordllama", WORDLLAMA_TOKENIZER, "text")
    return token_encoder(load_tokenizer(path), max_tokens, special_tokens=False)
