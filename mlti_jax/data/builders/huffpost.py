"""Huffpost (App. E.8): categories of news titles; non-label-sharing, 5-way, 1/5-shot.

Bao et al. (2020) number the 41 categories of the HuffPost news archive from the largest
to the smallest. The paper uses 25 for meta-training, 6 for meta-validation and 10 for
meta-testing and does not list them; here they follow each other in that order.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._pools import ClassPool
from mlti_jax.data._readers import files, tokens
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders._base import DatasetBuilder, Example
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

__all__ = ["Huffpost", "load"]

_TRAIN = (
    "POLITICS",
    "WELLNESS",
    "ENTERTAINMENT",
    "TRAVEL",
    "STYLE & BEAUTY",
    "PARENTING",
    "HEALTHY LIVING",
    "QUEER VOICES",
    "FOOD & DRINK",
    "BUSINESS",
    "COMEDY",
    "SPORTS",
    "BLACK VOICES",
    "HOME & LIVING",
    "PARENTS",
    "THE WORLDPOST",
    "WEDDINGS",
    "WOMEN",
    "IMPACT",
    "DIVORCE",
    "CRIME",
    "MEDIA",
    "WEIRD NEWS",
    "GREEN",
    "WORLDPOST",
)
_VALIDATION = ("RELIGION", "STYLE", "SCIENCE", "WORLD NEWS", "TASTE", "TECH")
_TEST = (
    "MONEY",
    "ARTS",
    "FIFTY",
    "GOOD NEWS",
    "ARTS & CULTURE",
    "ENVIRONMENT",
    "COLLEGE",
    "LATINO VOICES",
    "CULTURE & ARTS",
    "EDUCATION",
)
_SPLITS = {"train": _TRAIN, "validation": _VALIDATION, "test": _TEST}
_CLASSES = _TRAIN + _VALIDATION + _TEST  # A label of the file is the position here.
_FILE = "huffpost.json"
_MAX_LINE = 2**20  # bytes; the longest line of the release has 232
_FEATURES = ("bag_of_words", "wordllama", "albert")

_Encoder = Callable[[Iterable[str]], PyTree]


class Huffpost(DatasetBuilder):
    """TFDS builder of Huffpost; records are grouped by category."""

    INSTRUCTIONS = (
        f"Download {_FILE} (the data of 'Few-shot Text Classification with"
        " Distributional Signatures', linked on"
        " https://github.com/YujiaBao/Distributional-Signatures), unpack it and put it"
        " into a folder DIR."
    )
    EXAMPLES = 36_900

    def _info(self) -> tfds.core.DatasetInfo:
        return self.describe(
            {
                "text": tfds.features.Text(doc="title, words separated by spaces"),
                "label": tfds.features.ClassLabel(names=_CLASSES),
            },
            description="Titles of the HuffPost in 41 categories, 900 each.",
            homepage="https://github.com/YujiaBao/Distributional-Signatures",
            citation="""@inproceedings{bao2020few,
              title={Few-shot Text Classification with Distributional Signatures},
              author={Bao, Yujia and Wu, Menghua and Chang, Shiyu and Barzilay, Regina},
              booktitle={International Conference on Learning Representations},
              year={2020}}""",
            license="CC BY 4.0 (News Category Dataset by Rishabh Misra)",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[Example]]:
        """Read the file; see the base class."""
        path = files.find(raw, _FILE, instructions=self.INSTRUCTIONS)
        titles = _read_titles(path)
        return {
            split: [{"text": t, "label": c} for c in classes for t in titles[c]]
            for split, classes in _SPLITS.items()
        }


def _read_titles(path: pathlib.Path) -> dict[str, list[str]]:
    """Read the titles of each category, in the order of the file."""
    titles: dict[str, list[str]] = {name: [] for name in _CLASSES}
    files.check_file(path)
    with files.reading(path), path.open("rb") as file:
        lines = iter(functools.partial(file.readline, _MAX_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            text, label = _parse_line(line, f"line {number} of {path}")
            titles[_CLASSES[label]].append(text)
    missing = [str(_CLASSES.index(name)) for name, found in titles.items() if not found]
    if missing:
        raise InputError(
            f"{path} has no title with label {', '.join(missing)}; expected all labels"
            f" from 0 to {len(_CLASSES) - 1}. The file is truncated or another dataset;"
            f" {files.DOWNLOAD_AGAIN}. {Huffpost.INSTRUCTIONS}"
        )
    return titles


def _parse_line(line: bytes, place: str) -> tuple[str, int]:
    """Return the title of a line, words separated by spaces, and its label."""
    if len(line) > _MAX_LINE:
        raise InputError(
            f"{place} has more than {_MAX_LINE:,} bytes; expected one title. The file"
            f" is damaged or another dataset, {files.DOWNLOAD_AGAIN}"
        )
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8
        raise InputError(
            f"{place} is not valid JSON ({error}); the file is damaged or truncated,"
            f" {files.DOWNLOAD_AGAIN}"
        ) from error
    fields = record if isinstance(record, dict) else {}
    text, words, label = (fields.get(name) for name in ("raw", "text", "label"))
    if not isinstance(text, str):
        if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
            raise InputError(
                f"{place} has no title: expected 'raw' (a string) or 'text' (a list of"
                f" strings), found {_shorten(record)}. {Huffpost.INSTRUCTIONS}"
            )
        text = " ".join(words)
    if not _is_unicode(text):
        raise InputError(
            f"{place} has the title {text[:80]!r} with half of a character (a"
            f" surrogate); the file is damaged, {files.DOWNLOAD_AGAIN}"
        )
    if (
        not isinstance(label, int)
        or isinstance(label, bool)
        or not 0 <= label < len(_CLASSES)
    ):
        raise InputError(
            f"{place} has the label {_shorten(label)}; expected an integer from 0 to"
            f" {len(_CLASSES) - 1} in the field 'label'. {Huffpost.INSTRUCTIONS}"
        )
    return text, label


def _is_unicode(text: str) -> bool:
    """Whether a text is valid Unicode; JSON can also hold half a character."""
    return text.encode("utf-8", "replace").decode() == text


def _shorten(record: object) -> str:
    text = repr(record)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _bag_of_words(texts: Iterable[str], vocabulary: int) -> _Encoder:
    """Return an encoder of titles by which of the most frequent words they have.

    Args:
      texts: titles that the words are taken from.
      vocabulary: number of words: those in most titles, ties in alphabetical order.

    Returns:
      A function from M titles to bool `[M, vocabulary]`.
    """
    frequency = Counter(word for text in texts for word in set(text.split()))
    check_range("vocabulary", vocabulary, len(frequency))
    ranked = sorted(frequency, key=lambda word: (-frequency[word], word))
    column = {word: i for i, word in enumerate(ranked[:vocabulary])}

    def encode(texts: Iterable[str]) -> np.ndarray:
        texts = list(texts)
        x = np.zeros((len(texts), vocabulary), bool)
        for row, text in zip(x, texts, strict=True):
            row[[column[word] for word in text.split() if word in column]] = True
        return x

    return encode


def _albert_encoder(
    tokenizer: str | os.PathLike[str] | None, max_tokens: int
) -> _Encoder:
    """Return an encoder of titles with the tokenizer of a checkpoint folder."""
    if tokenizer is None:
        raise InputError(
            "features 'albert' of Huffpost need the option tokenizer: the folder of an"
            " ALBERT checkpoint with its tokenizer.json"
        )
    loaded = tokens.load_tokenizer(pathlib.Path(tokenizer) / "tokenizer.json")
    return tokens.token_encoder(loaded, max_tokens, special_tokens=True)


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = len(_TRAIN),
    features: str = "bag_of_words",
    vocabulary: int = 2000,
    tokenizer: str | os.PathLike[str] | None = None,
    max_tokens: int = 32,
) -> Splits:
    """Load Huffpost from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training categories, the largest ones.
      features: network input: `bag_of_words`, `wordllama` (tokens for the backbone
        `word_mean`) or `albert` (tokens for the backbone `albert`).
      vocabulary: number of words of `bag_of_words`, chosen from the titles of the
        training categories.
      tokenizer: for `albert`, the folder of a checkpoint with its tokenizer.json.
      max_tokens: tokens per title of `wordllama` and `albert`, special tokens included;
        longer titles are truncated.

    Returns:
      Training, validation and test categories; inputs bool `[M, vocabulary]` or
      `{"ids": [M, max_tokens], "mask": [M, max_tokens]}`.

    Raises:
      InputError: if an option is invalid or the dataset is not prepared.
    """
    check_range("train_classes", train_classes, len(_TRAIN))
    if features not in _FEATURES:
        raise unknown_name("features of Huffpost", features, _FEATURES)
    found = prepared.open_prepared("huffpost", data_dir)

    def titles(split: str, classes: int | None = None) -> dict[str, np.ndarray]:
        rows = prepared.first_rows(found, split, classes)
        return prepared.read(found, split, ("text", "label"), rows)

    train = titles("train", train_classes)
    size = f"{max_tokens} tokens of {features}"
    if features == "bag_of_words":
        encode = _bag_of_words(train["text"], vocabulary)
        size = f"{features} of {vocabulary:,} words"
    elif features == "wordllama":
        encode = tokens.wordllama_encoder(max_tokens)
    else:
        encode = _albert_encoder(tokenizer, max_tokens)

    def pool(columns: dict[str, np.ndarray]) -> ClassPool:
        present, label = np.unique(columns["label"], return_inverse=True)
        return ClassPool.from_arrays(
            encode(columns["text"]), label, classes=[_CLASSES[i] for i in present]
        )

    return Splits(
        name="huffpost",
        setting="non_label_sharing",
        train=pool(train),
        validation=pool(titles("validation")),
        test=pool(titles("test")),
        note=f"Huffpost, titles as {size}, {train_classes} training classes",
    )
