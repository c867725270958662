"""Huffpost: the release, its categories and bags of words."""

from __future__ import annotations

import collections
import json

import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._pools import check_episode
from mlti_jax.data.builders import huffpost
from mlti_jax.errors import InputError
from tests.support.raw_files import prepare
from tests.support.releases import huffpost_records, write_huffpost


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    raw = write_huffpost(tmp_path_factory.mktemp("raw"))
    data_dir = tmp_path_factory.mktemp("data")
    prepare("huffpost", raw, data_dir)
    return data_dir


@pytest.mark.slow
def test_real_release(raw_dir, tmp_path):
    raw = raw_dir / "huffpost"
    builder = prepare("huffpost", raw, tmp_path)
    lines = (raw / "huffpost.json").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 36_900
    for split, number in (("train", 25), ("validation", 6), ("test", 10)):
        assert list(prepared.counts(builder, split).values()) == [900] * number

    # Every title occurs once, ordered by label and then as in the file.
    in_order = sorted(records, key=lambda record: record["label"])
    read = [
        prepared.read(builder, split, ("text", "label"), range(rows))
        for split, rows in (("train", 22_500), ("validation", 5_400), ("test", 9_000))
    ]
    texts = np.concatenate([part["text"] for part in read])
    labels = np.concatenate([part["label"] for part in read])
    assert texts.tolist() == [record["raw"] for record in in_order]
    assert labels.tolist() == [record["label"] for record in in_order]

    splits = data.load("huffpost", data_dir=tmp_path, train_classes=3)
    assert splits.train.classes == ("POLITICS", "WELLNESS", "ENTERTAINMENT")
    assert splits.train.x.shape == (2_700, 2_000)
    assert splits.train.x.dtype == bool
    assert splits.validation.classes == huffpost._VALIDATION
    assert splits.test.classes == huffpost._TEST
    assert splits.test.x.shape == (9_000, 2_000)
    assert splits.setting == "non_label_sharing"
    assert "3 training classes" in splits.note
    # The words are those of the three training classes, counted here.
    frequency = collections.Counter()
    for record in in_order[:2_700]:
        frequency.update(set(record["raw"].split()))
    words = sorted(frequency, key=lambda word: (-frequency[word], word))[:2_000]
    title = set(in_order[28_000]["raw"].split())  # of the test classes
    expected = [word in title for word in words]
    np.testing.assert_array_equal(splits.test.x[28_000 - 27_900], expected)
    check_episode(splits.train, ways=3, shots=5, queries=15)


def test_category_names_fit_the_titles(raw_dir):
    # A typical word of a category is more frequent there than in other categories.
    titles = huffpost._read_titles(raw_dir / "huffpost" / "huffpost.json")
    words = {
        "POLITICS": "senate",
        "QUEER VOICES": "lgbtq",
        "SPORTS": "nfl",
        "HOME & LIVING": "decor",
        "WEDDINGS": "wedding",
        "DIVORCE": "divorce",
        "CRIME": "murder",
        "RELIGION": "pope",
        "SCIENCE": "nasa",
        "TECH": "iphone",
        "MONEY": "mortgage",
        "COLLEGE": "campus",
        "LATINO VOICES": "latinos",
        "EDUCATION": "teachers",
    }
    for category, word in words.items():
        number = {
            name: sum(word in title.split() for title in of_class)
            for name, of_class in titles.items()
        }
        assert max(number, key=number.get) == category, word


def test_both_layouts_give_the_same_titles(tmp_path):
    raw = write_huffpost(tmp_path / "raw", huffpost_records("raw")) / "huffpost.json"
    text = write_huffpost(tmp_path / "text", huffpost_records("text")) / "huffpost.json"
    titles = huffpost._read_titles(raw)
    assert titles == huffpost._read_titles(text)
    assert titles["WELLNESS"] == [f"common word1 number{i}" for i in range(3)]
    assert list(titles) == list(huffpost._CLASSES)


def test_splits_of_a_small_file(small):
    splits = data.load("huffpost", data_dir=small, vocabulary=5)
    assert splits.train.classes == huffpost._TRAIN
    assert len(huffpost._TRAIN) == 25
    np.testing.assert_array_equal(splits.test.count, np.full(10, 3))
    # "common" is in all titles and each number in a third. The words of the classes
    # are equally frequent, so the first in the alphabet is chosen: "word0".
    x = np.asarray(splits.train.x)
    np.testing.assert_array_equal(x[0], [1, 1, 0, 0, 1])
    np.testing.assert_array_equal(x[3], [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(x[4], [1, 0, 1, 0, 0])


def test_bag_of_words():
    encode = huffpost._bag_of_words(["b a", "b b c", "c"], 2)
    # b and c are in two titles each, a in one; b is first in the alphabet.
    x = encode(["a c", "", "unknown", "c b c b"])
    assert x.dtype == bool
    np.testing.assert_array_equal(x, [[0, 1], [0, 0], [0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_classes": 26}, "train_classes is 26; expected .* from 1 to 25"),
        ({"train_classes": None}, "train_classes is None"),
        ({"features": "bert"}, "unknown features of Huffpost 'bert'"),
        # common, 3 numbers, 25 classes
        ({"vocabulary": 30}, "vocabulary is 30; expected .* from 1 to 29"),
        ({"vocabulary": 0}, "vocabulary is 0"),
        ({"words": 1}, "unknown option"),
    ],
)
def test_bad_options(small, options, message):
    with pytest.raises(InputError, match=message):
        data.load("huffpost", data_dir=small, **options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"raw": "a title", "lab', "not valid JSON .* truncated, download"),
        ("", "not valid JSON"),
        ('{"label": 3}', "no title: expected 'raw'"),
        ('{"text": "a b", "label": 3}', "no title: .* 'text' .a list"),
        ('{"text": ["a", 1], "label": 3}', "no title"),
        ('["a", 3]', "no title"),
        ('{"raw": "a b"}', "the label None; expected .* from 0 to 40"),
        ('{"raw": "a b", "label": 41}', "the label 41"),
        ('{"raw": "a b", "label": -1}', "the label -1"),
        ('{"raw": "a b", "label": "3"}', "the label '3'"),
        ('{"raw": "a b", "label": true}', "the label True"),
    ],
)
def test_bad_lines(tmp_path, line, message):
    raw = write_huffpost(tmp_path / "raw", [*huffpost_records(), line])
    with pytest.raises(InputError, match=message) as error:
        prepare("huffpost", raw, tmp_path / "data")
    assert f"line 124 of {raw / 'huffpost.json'}" in str(error.value)


def test_line_that_is_not_utf8(tmp_path):
    path = tmp_path / "huffpost.json"
    path.write_bytes(b'{"raw": "\xff\xfe", "label": 3}\n')
    with pytest.raises(InputError, match="line 1 of .* not valid JSON"):
        huffpost._read_titles(path)


def test_missing_classes(tmp_path):
    records = [r for r in huffpost_records() if r["label"] not in (7, 40)]
    path = write_huffpost(tmp_path, records) / "huffpost.json"
    with pytest.raises(InputError, match="no title with label 7, 40; expected all"):
        huffpost._read_titles(path)


def test_classes_may_differ_in_size_and_titles_be_empty(tmp_path):
    records = [*huffpost_records(), {"raw": "", "label": 0}]
    raw = write_huffpost(tmp_path / "raw", records)
    prepare("huffpost", raw, tmp_path / "data")
    splits = data.load("huffpost", data_dir=tmp_path / "data", vocabulary=5)
    assert splits.train.count[0] == 4
    assert not splits.train.x[3].any()


def test_missing_file_and_missing_data(tmp_path):
    (tmp_path / "another.file").touch()
    with pytest.raises(InputError, match=r"has no huffpost.json. .*Distributional"):
        prepare("huffpost", tmp_path, tmp_path / "data")
    with pytest.raises(InputError, match="huffpost is not prepared in .* Then run:"):
        data.load("huffpost", data_dir=tmp_path / "data")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 10**5, "line 1 of .* is not valid JSON .*recursion"),
        ('{"raw": "' + "a" * 2**20, "line 1 of .* has more than 1,048,576 bytes"),
        ('{"raw": "\\ud800", "label": 1}', r"line 1 of .*'.ud800' with half of a"),
        ('{"raw": "a", "label": ' + "9" * 5000 + "}", "line 1 of .* is not valid JSON"),
        ('{"raw": "a", "label": ' + "9" * 4000 + "}", "line 1 .* has the label 999"),
    ],
)
def test_hostile_lines(tmp_path, line, message):
    path = write_huffpost(tmp_path / "raw", [line]) / "huffpost.json"
    with pytest.raises(InputError, match=message) as error:
        huffpost._read_titles(path)
    assert len(str(error.value)) < 1000
