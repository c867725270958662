"""Huffpost (App. E.8): categories of news titles; non-label-sharing, 5-way, 1/5-shot.

41 categories, numbered by Bao et al. (2020) from the largest to the smallest of the
HuffPost news archive. The paper uses 25 for meta-training, 6 for meta-validation and
10 for meta-testing and does not name them; here they follow each other in that order.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._pools import ClassPool
from mlti_jax.data._readers import raw, tokens
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders.base import DatasetBuilder, Example
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

TRAIN = (
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
VALIDATION = ("RELIGION", "STYLE", "SCIENCE", "WORLD NEWS", "TASTE", "TECH")
TEST = (
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
CLASSES = TRAIN + VALIDATION + TEST  # a file's label is the position here
FILE = "huffpost.json"

Texts = Iterable[str]
Encoder = Callable[[Texts], PyTree]


class Huffpost(DatasetBuilder):
    """The builder; records are grouped by category."""

    INSTRUCTIONS = (
        f"Download {FILE} (the data of 'Few-shot Text Classification with"
        " Distributional Signatures', named on"
        " https://github.com/YujiaBao/Distributional-Signatures) and put it, unpacked,"
        " into a folder DIR."
    )
    EXAMPLES = 36_900

    def _info(self):
        return self.describe(
            {
                "text": tfds.features.Text(doc="title, words separated by spaces"),
                "label": tfds.features.ClassLabel(names=CLASSES),
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

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[Example]]:
        """Reads the file; see the base class."""
        path = raw.require(folder, FILE, instructions=self.INSTRUCTIONS)
        titles = read_titles(path)

        def examples(classes: tuple[str, ...]) -> list[Example]:
            return [{"text": t, "label": c} for c in classes for t in titles[c]]

        return {
            "train": examples(TRAIN),
            "validation": examples(VALIDATION),
            "test": examples(TEST),
        }


def read_titles(path: pathlib.Path) -> dict[str, list[str]]:
    """The titles of each category, in the order of the file."""
    titles: dict[str, list[str]] = {name: [] for name in CLASSES}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                text, label = parse_line(line, f"line {number} of {path}")
                titles[CLASSES[label]].append(text)
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror})") from error
    missing = [str(CLASSES.index(name)) for name, found in titles.items() if not found]
    if missing:
        raise InputError(
            f"{path} has no title with label {', '.join(missing)}; expected all labels"
            f" from 0 to {len(CLASSES) - 1}, so it is cut off or another dataset;"
            f" {raw.AGAIN}. {Huffpost.INSTRUCTIONS}"
        )
    return titles


def parse_line(line: bytes, place: str) -> tuple[str, int]:
    """A line's title, words separated by spaces, and its label."""
    try:
        record = json.loads(line)
    except ValueError as error:  # of JSON, or of UTF-8
        raise InputError(
            f"{place} is no JSON ({error}): the file is damaged or cut off; {raw.AGAIN}"
        ) from error
    fields = record if isinstance(record, dict) else {}
    text, tokens, label = (fields.get(name) for name in ("raw", "text", "label"))
    if not isinstance(text, str):
        if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
            raise InputError(
                f"{place} has no title: expected 'raw' (a string) or 'text' (a list of"
                f" strings), found {_shorten(record)}. {Huffpost.INSTRUCTIONS}"
            )
        text = " ".join(tokens)
    whole = isinstance(label, int) and not isinstance(label, bool)
    if not whole or not 0 <= label < len(CLASSES):
        raise InputError(
            f"{place} has the label {label!r}; expected a whole number from 0 to"
            f" {len(CLASSES) - 1}, in the field 'label'. {Huffpost.INSTRUCTIONS}"
        )
    return text, label


def _shorten(record: object) -> str:
    text = repr(record)
    return text if len(text) <= 80 else f"{text[:80]}..."


def bag_of_words(texts: Texts, vocabulary: int) -> Encoder:
    """Encodes which of the commonest words of `texts` a title has.

    Args:
      texts: the titles to take the words from.
      vocabulary: how many words: those in most titles, in alphabetical order where
        they are in as many.

    Returns:
      A function from M titles to bool `[M, vocabulary]`.
    """
    frequency = Counter(word for text in texts for word in set(text.split()))
    check_range("vocabulary", vocabulary, len(frequency))
    ranked = sorted(frequency, key=lambda word: (-frequency[word], word))
    column = {word: i for i, word in enumerate(ranked[:vocabulary])}

    def encode(texts: Texts) -> np.ndarray:
        texts = list(texts)
        x = np.zeros((len(texts), vocabulary), bool)
        for row, text in zip(x, texts, strict=True):
            row[[column[word] for word in text.split() if word in column]] = True
        return x

    return encode


class Options(NamedTuple):
    """What `load` is told about features, for the way of making them to pick from."""

    vocabulary: int
    tokenizer: str | os.PathLike[str] | None
    max_tokens: int


def wordllama_tokens(max_tokens: int) -> Encoder:
    """Encodes titles as tokens of wordllama, for the network `word_mean`."""
    return tokens.token_encoder(
        tokens.wordllama_tokenizer(), max_tokens, special_tokens=False
    )


def albert_tokens(tokenizer: str | os.PathLike[str] | None, max_tokens: int) -> Encoder:
    """Encodes titles as tokens of a checkpoint, for the network `albert`.

    Args:
      tokenizer: folder of the checkpoint, with its tokenizer.json.
      max_tokens: tokens of a title, the special ones included.
    """
    if tokenizer is None:
        raise InputError(
            "features 'albert' of Huffpost need the option tokenizer: the folder of a"
            " checkpoint of ALBERT, with its tokenizer.json"
        )
    loaded = tokens.load_tokenizer(pathlib.Path(tokenizer) / "tokenizer.json")
    return tokens.token_encoder(loaded, max_tokens, special_tokens=True)


# Each makes an encoder from the training titles and the options.
FEATURES: dict[str, Callable[[Texts, Options], Encoder]] = {
    "bag_of_words": lambda texts, options: bag_of_words(texts, options.vocabulary),
    "wordllama": lambda texts, options: wordllama_tokens(options.max_tokens),
    "albert": lambda texts, options: albert_tokens(
        options.tokenizer, options.max_tokens
    ),
}


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = len(TRAIN),
    features: str = "bag_of_words",
    vocabulary: int = 2000,
    tokenizer: str | os.PathLike[str] | None = None,
    max_tokens: int = 32,
) -> Splits:
    """Loads Huffpost.

    Args:
      data_dir: where prepared data lives; None for the default.
      train_classes: training categories, the first of `TRAIN`.
      features: how a title becomes the network's input, see `FEATURES`.
      vocabulary: `bag_of_words`: number of words known, all from titles of these
        training categories.
      tokenizer: `albert`: folder of a checkpoint with its tokenizer.json.
      max_tokens: `wordllama` and `albert`: tokens of a title; longer ones are cut.
    """
    check_range("train_classes", train_classes, len(TRAIN))
    if features not in FEATURES:
        raise unknown_name("features of Huffpost", features, FEATURES)
    found = prepared.open_prepared("huffpost", data_dir)

    def titles(split: str, classes: int | None = None) -> dict[str, np.ndarray]:
        rows = prepared.first_rows(found, split, classes)
        return prepared.read(found, split, ("text", "label"), rows)

    train = titles("train", train_classes)
    options = Options(vocabulary, tokenizer, max_tokens)
    encode = FEATURES[features](train["text"], options)

    def pool(columns: dict[str, np.ndarray]) -> ClassPool:
        present, label = np.unique(columns["label"], return_inverse=True)
        return ClassPool.from_arrays(
            encode(columns["text"]), label, classes=[CLASSES[i] for i in present]
        )

    size = f"{max_tokens} tokens of {features}"
    if features == "bag_of_words":
        size = f"{features} of {vocabulary:,} words"
    return Splits(
        name="huffpost",
        setting="non_label_sharing",
        train=pool(train),
        validation=pool(titles("validation")),
        test=pool(titles("test")),
        note=(f"Huffpost, titles as {size}, {train_classes} training classes"),
    )
