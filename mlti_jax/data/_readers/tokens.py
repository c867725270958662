"""Tokenizers: titles as the token ids that text backbones take."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mlti_jax._internal import extras
from mlti_jax._internal.checks import check_range
from mlti_jax.data._readers import files
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
    content = files.read_bytes(path)
    with _tokenizing(f"can't read {path} as a tokenizer"):
        return tokenizers.Tokenizer.from_buffer(content)


@contextlib.contextmanager
def _tokenizing(failure: str) -> Iterator[None]:
    """Turn the errors of the `tokenizers` package into an `InputError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    # The package raises no more specific type, and panics are not an `Exception`.
    except BaseException as error:
        reason = str(error)[:200]
        raise InputError(f"{failure} ({reason}); {files.DOWNLOAD_AGAIN}") from error


def token_encoder(tokenizer: Any, max_tokens: int, special_tokens: bool) -> Encoder:
    """Return an encoder of texts as token ids, truncated or padded to one length.

    Args:
      tokenizer: from `load_tokenizer`; its padding and truncation are changed in place.
      max_tokens: length T, special tokens included.
      special_tokens: whether to add the tokenizer's start and end tokens.

    Returns:
      A function from M texts to `{"ids": int32 [M, T], "mask": bool [M, T]}`. It
      raises `InputError` if the tokenizer is inconsistent.

    Raises:
      InputError: if `max_tokens` is out of range.
    """
    added = tokenizer.num_special_tokens_to_add(False) if special_tokens else 0
    check_range("max_tokens", max_tokens, MAX_TOKENS, added + 1)
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    failure = "the tokenizer can't encode the texts; its file may be damaged"

    def encode(texts: Iterable[str]) -> dict[str, np.ndarray]:
        texts = [str(text) for text in texts]
        ids = np.zeros((len(texts), max_tokens), np.int32)
        mask = np.zeros((len(texts), max_tokens), bool)
        with _tokenizing(failure):
            encoded = tokenizer.encode_batch(texts, add_special_tokens=special_tokens)
            for row, tokens in enumerate(encoded):
                ids[row, : len(tokens.ids)] = tokens.ids
                mask[row, : len(tokens.ids)] = True
        return {"ids": ids, "mask": mask}

    return encode


def wordllama_encoder(max_tokens: int) -> Encoder:
    """Return an encoder with the tokenizer of the installed package wordllama."""
    path = extras.package_file("wordllama", WORDLLAMA_TOKENIZER, "text")
    return token_encoder(load_tokenizer(path), max_tokens, special_tokens=False)
