"""Readers of untrusted bytes: an `InputError` or a valid result, never anything else.

Every reader gets a small valid file with random changes (bytes flipped, cut out,
inserted, repeated or exchanged), and random bytes. What it returns must satisfy what
the rest of the package relies on.
"""

from __future__ import annotations

import gzip
import io
import json
import pathlib
import pickle
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mlti_jax import data
from mlti_jax.data._own.files import Table, read_npz
from mlti_jax.data._own.image_files import read_header, read_image
from mlti_jax.data._own.inputs import Inputs
from mlti_jax.data._readers import descriptors, fingerprints, mnist, tokens
from mlti_jax.data._readers.images import decode_image
from mlti_jax.data._readers.pickles import load_pickle
from mlti_jax.data.builders import fsmol, huffpost, metabolism, nci
from mlti_jax.data.builders._molecules import Assay
from mlti_jax.errors import InputError
from tests.support.property_settings import settings_of

MAX_SECONDS = 10  # of one file, on a busy machine
RNG = np.random.default_rng(0)


class Reader(NamedTuple):
    """How to read a file, and valid content to start from.

    Attributes:
      suffix: ending of the file.
      seeds: contents that must be accepted.
      read: reads the file and checks the result with `assert`.
    """

    suffix: str
    seeds: tuple[bytes, ...]
    read: Callable[[pathlib.Path], None]


# ----------------------------------------------------------------------------- readers


def check_plain(value: Any) -> None:
    """Check that a pickle holds arrays of plain dtypes and Python's own types."""
    if isinstance(value, np.ndarray):
        assert value.dtype.kind in "buifSUO"
        assert type(value) is np.ndarray
        if value.dtype.kind != "O":
            value.sum() if value.dtype.kind in "buif" else value.tolist()
            return
        value = value.tolist()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            check_plain(entry)
    else:
        plain = str | bytes | bytearray | int | float | np.generic | None
        assert isinstance(value, plain)


PICKLED = {
    "x": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "y": (np.float32(1.5), [np.array(["a", "b"]), 3, b"bytes"]),
    "objects": np.array([1, "a", None], object),
    "order": np.asfortranarray(np.ones((2, 2))),
}


def saved(save: Callable[..., None], **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def read_arrays(path: pathlib.Path) -> None:
    found = read_npz(path, ("x",), optional=("y", "task"))
    for array in found.values():
        assert array.dtype.kind != "O"
        assert array.nbytes <= 10**6
        array.tolist()
    load_own(path)


def load_own(path: pathlib.Path, **options: Any) -> None:
    """Load users' data; everything in a pool is finite and indices are valid."""
    splits = data.load("own_data", path=path, test=None, **options)
    pool = splits.train
    assert np.isfinite(np.asarray(pool.x, np.float32)).all()
    assert np.asarray(pool.index).max() < len(pool.x)
    assert np.asarray(pool.count).min() >= 1


def read_own_table(path: pathlib.Path) -> None:
    table = Table(path)
    names = [str(name).strip() for name in table.frame.columns]
    assert len(set(names)) == len(names)
    load_own(path, label="y", task="t")


ARRAYS = {
    "x": RNG.normal(size=(12, 3)),
    "y": np.tile([0, 1], 6),
    "task": np.arange(12) // 4,
}
TABLE = "t,y,a,b\n" + "".join(f"{i // 4},{i % 2},{i}.5,{i * i}\n" for i in range(12))


def read_idx(path: pathlib.Path) -> None:
    found = mnist.read_idx(path, ndim=3)
    assert found.ndim == 3
    assert found.dtype == np.uint8


IDX = struct.pack(">HBB3I", 0, 8, 3, 2, 4, 4) + bytes(range(32))

BLOCK = (
    "\n  a\n\n  3  2  0  0  0  0            999 V2000\n"
    "    0.0000    0.0000    0.0000 C   0  0\n"
    "    1.2990    0.7500    0.0000 C   0  0\n"
    "    2.5981   -0.0000    0.0000 O   0  0\n"
    "  1  2  1  0\n  2  3  1  0\nM  END\n"
)
SDF = f"{BLOCK}> <value>\n1.0\n\n$$$$\n{BLOCK}> <value>\n-1.0\n\n$$$$\n"


def check_molecule(molecule: fingerprints.Molecule | None) -> None:
    if molecule is not None:
        assert molecule.morgan.shape == molecule.path.shape == (fingerprints.BITS,)
        assert molecule.morgan.dtype == bool


def read_sdf(path: pathlib.Path) -> None:
    assay = nci._read_sdf(path.read_bytes(), "a.sdf")
    assert len(assay.texts) == len(assay.labels)
    assert set(assay.labels) <= {0, 1}
    for text in assay.texts:
        check_molecule(fingerprints.parse_mol_block(text))


TAB = "Drug_ID\tDrug\tY\n1.0\tCC(=O)Nc1ccc(O)cc1\t1\n2.0\tC1CC1[C@H](F)Cl\t0\n"


def read_tab(path: pathlib.Path) -> None:
    assay = metabolism._read_assay(path)
    assert len(assay.texts) == len(assay.labels)
    assert set(assay.labels) <= {0, 1}
    for text in assay.texts:
        check_molecule(fingerprints.parse_smiles(text))


FSMOL = "task,smiles,label,value\nA,CC(=O)Nc1ccc(O)cc1,1,\nB,C1CC1CF,0,7.5\n"
FSMOL_LINES = "".join(
    json.dumps({"SMILES": smiles, "Property": label, "fingerprints": [0, 1]}) + "\n"
    for smiles, label in (("CC(=O)Nc1ccc(O)cc1", "1.0"), ("C1CC1CF", "0.0"))
)


def check_features(assay: Assay) -> None:
    assert len(assay.texts) == len(assay.labels)
    assert set(assay.labels) <= {0, 1}
    for text in assay.texts:
        features = descriptors.parse_smiles(text)
        if features is not None:
            assert features.descriptors.shape == (len(descriptors.NAMES),)
            assert (features.counts > 0).all()


def read_fsmol_table(path: pathlib.Path) -> None:
    for assay in fsmol._read_table(path).values():
        check_features(assay)


def read_fsmol_lines(path: pathlib.Path) -> None:
    check_features(fsmol._read_lines(path))


TITLES = "".join(
    json.dumps({"raw": f"a title {label}", "label": label}) + "\n"
    for label in range(41)
)


def read_titles(path: pathlib.Path) -> None:
    titles = huffpost._read_titles(path)
    assert len(titles) == 41
    for of_class in titles.values():
        assert of_class
        "".join(of_class).encode()


def picture(form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pixels = RNG.integers(0, 256, (9, 7, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, form, **options)
    return buffer.getvalue()


def read_picture(path: pathlib.Path) -> None:
    decoded = decode_image(path.read_bytes(), "a", 4)
    assert decoded.shape == (4, 4, 3)
    assert decoded.dtype == np.uint8
    header = read_header(path)
    assert header.height > 0
    assert header.width > 0
    assert read_image(path, (5, 6, 3), resize=True).shape == (5, 6, 3)


def read_record(path: pathlib.Path) -> None:
    inputs = Inputs.from_json(path.read_text("utf-8", "replace"))
    assert Inputs.from_json(inputs.to_json()) == inputs


RECORD = data.from_arrays(
    {f"t{i}": (RNG.normal(size=(4, 2)), [0, 1] * 2) for i in range(3)}, standardise=True
).inputs.to_json()

TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {"a": 0, "b": 1, "?": 2},
            "unk_token": "?",
        },
    }
)


def read_tokenizer(path: pathlib.Path) -> None:
    encode = tokens.token_encoder(tokens.load_tokenizer(path), 4, special_tokens=False)
    found = encode(["a b c", "b"])
    assert found["ids"].shape == found["mask"].shape == (2, 4)


READERS = {
    "pickle": Reader(
        ".pkl",
        tuple(pickle.dumps(PICKLED, protocol) for protocol in range(6)),
        lambda path: check_plain(load_pickle(path)),
    ),
    "npz": Reader(
        ".npz",
        (saved(np.savez, **ARRAYS), saved(np.savez_compressed, **ARRAYS)),
        read_arrays,
    ),
    "csv": Reader(
        ".csv", (TABLE.encode(), ("\ufeff" + TABLE).encode()), read_own_table
    ),
    "idx": Reader("", (IDX, gzip.compress(IDX, mtime=0)), read_idx),
    "sdf": Reader(".sdf", (SDF.encode(),), read_sdf),
    "tab": Reader(".tab", (TAB.encode(),), read_tab),
    "fsmol_table": Reader(
        ".csv.gz",
        (FSMOL.encode(), gzip.compress(FSMOL.encode(), mtime=0)),
        read_fsmol_table,
    ),
    "fsmol_lines": Reader(
        ".jsonl.gz",
        (FSMOL_LINES.encode(), gzip.compress(FSMOL_LINES.encode(), mtime=0)),
        read_fsmol_lines,
    ),
    "json_lines": Reader(".json", (TITLES.encode(),), read_titles),
    "json": Reader(".json", (RECORD.encode(),), read_record),
    "image": Reader(
        "",
        tuple(
            picture(form)
            for form in (
                "PNG",
                "JPEG",
                "BMP",
                "GIF",
                "TIFF",
                "WEBP",
                "PPM",
                "TGA",
                "ICO",
            )
        ),
        read_picture,
    ),
    "tokenizer": Reader(".json", (TOKENIZER.encode(),), read_tokenizer),
}


# --------------------------------------------------------------------------- mutations


@st.composite
def mutated(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A seed with one to eight random changes."""
    content = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, max(len(content) - 1, 0)))
        stop = min(len(content), start + draw(st.integers(1, 64)))
        change = draw(st.sampled_from(("bit", "byte", "cut", "add", "twice", "splice")))
        if change == "bit" and content:
            content[start] ^= 1 << draw(st.integers(0, 7))
        elif change == "byte" and content:
            content[start] = draw(st.sampled_from((0, 1, 10, 34, 46, 127, 128, 255)))
        elif change == "cut":
            end = stop if draw(st.booleans()) else len(content)
            del content[start:end]
        elif change == "add":
            content[start:start] = draw(st.binary(max_size=16))
        elif change == "twice":
            content[start:start] = content[start:stop] * draw(st.integers(1, 40))
        else:
            other = draw(st.sampled_from(seeds))
            place = draw(st.integers(0, len(other) - 1))
            content[start:stop] = other[place : place + stop - start]
    return bytes(content)


def check(reader: Reader, content: bytes) -> bool:
    """Read content; return whether it was accepted."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, f"a{reader.suffix}")
        path.write_bytes(content)
        try:
            reader.read(path)
            accepted = True
        except InputError as error:
            accepted = False
            message = str(error)
    assert time.monotonic() - start < MAX_SECONDS
    if not accepted:
        message.encode()
        assert len(message) < 5000
    return accepted


@pytest.mark.parametrize("name", READERS)
def test_valid_files_are_accepted(name):
    for seed in READERS[name].seeds:
        assert check(READERS[name], seed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_few_changed_files(name):
    fuzz(name, 100)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_many_changed_files(name):
    fuzz(name, 4000)


def fuzz(name: str, examples: int) -> None:
    reader = READERS[name]

    @settings_of(max_examples=examples)
    @given(mutated(reader.seeds))
    def changed(content):
        check(reader, content)

    @settings_of(max_examples=examples // 4)
    @given(st.binary(max_size=200), st.integers(0, 8))
    def random(content, kept):
        check(reader, reader.seeds[0][:kept] + content)

    changed()
    random()
