"""Small files in the layouts of the published releases.

Each function writes a release into a folder and returns the folder, or the images of
each class.
"""

from __future__ import annotations

import csv
import gzip
import json
import pathlib
import shutil
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from PIL import Image

from mlti_jax.data.builders import (
    _dermnet_classes,
    _tiered_imagenet_classes,
    metabolism,
    mini_imagenet,
    nci,
    tabula_muris,
)
from tests.support.raw_files import dump, noise, png

Expected = dict[str, np.ndarray]


# ----------------------------------------------------------------------------- Pose


def pose_arrays(objects: int, seed: int, images: int = 4):
    """Images uint8 `[objects, images, 128 * 128]`, angles `[objects, images, 1]`."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (objects, images, 128 * 128), np.uint8)
    return x, rng.random((objects, images, 1), np.float32)


def write_pose(folder: pathlib.Path, train: Any, test: Any) -> pathlib.Path:
    """Write the two pickles, with any content."""
    folder.mkdir(parents=True, exist_ok=True)
    dump(train, folder / "train_data_ins.pkl")
    dump(test, folder / "val_data_ins.pkl")
    return folder


# ------------------------------------------------------------------------ molecules

TAILS = ("O", "N", "Cl", "S", "F", "Br", "I", "C=O", "C#N", "C(=O)O")
CHAINS = ["C" * length + tail for tail in TAILS for length in range(1, 31)]
NCI_ASSAYS = nci._TRAIN + nci._TEST


def chains(number: int) -> list[str]:
    """100 molecules of an assay, some of them shared with the next assays.

    The test assays have molecules 150 to 299; the last three training assays have some
    of these too.
    """
    return CHAINS[25 * number : 25 * number + 100]


def write_nci(
    folder: pathlib.Path, change: Callable[[str, str], str | None] | None = None
) -> pathlib.Path:
    """Write an archive in which every third molecule of an assay is active.

    Args:
      folder: where to write it.
      change: takes an assay and the text of its file, returns the text to write; None
        leaves the file out.
    """
    chem = pytest.importorskip("rdkit.Chem")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "NCI_balanced.zip", "w") as archive:
        for number, assay in enumerate(NCI_ASSAYS):
            text: str | None = ""
            for i, smiles in enumerate(chains(number)):
                block = chem.MolToMolBlock(chem.MolFromSmiles(smiles))
                value = "1.0" if i % 3 == 0 else "-1.0"
                text += f"{block}> <value>\n{value}\n\n$$$$\n"
            if change is not None:
                text = change(assay, text)
            if text is not None:
                archive.writestr(f"NCI_balanced/{assay}-balance.sdf", text)
    return folder


def write_metabolism(folder: pathlib.Path) -> pathlib.Path:
    """Write tables in which every fourth molecule is active."""
    for number, name in enumerate(metabolism._TRAIN + metabolism._TEST):
        rows = [
            f"{i}.0\t{smiles}\t{int(i % 4 == 0)}"
            for i, smiles in enumerate(chains(number))
        ]
        text = "\n".join(["Drug_ID\tDrug\tY", *rows]) + "\n"
        (folder / f"{name}.tab").write_text(text)
    return folder


# --------------------------------------------------------------------------- FS-Mol

# Assays of each split: number of molecules, of which every third is active.
FSMOL_SIZES = {
    "train": (30, 12, 36, 45, 60, 24, 39),
    "valid": (48, 60),
    "test": (60, 90, 33),
}
UNREADABLE = "C(C)(C)(C)(C)(C)C"


def fsmol_assays() -> dict[str, dict[str, list[tuple[str, int]]]]:
    """Molecules and labels of each assay of each split; assays share molecules.

    The second training assay has no active molecule that RDKit can read, the first
    test assay has one molecule that it can't read.
    """
    number, splits = 0, {}
    for split, sizes in FSMOL_SIZES.items():
        splits[split] = {}
        for size in sizes:
            molecules = [CHAINS[(17 * number + i) % len(CHAINS)] for i in range(size)]
            rows = [(smiles, int(i % 3 == 0)) for i, smiles in enumerate(molecules)]
            if (split, size) == ("train", 12):
                rows = [(UNREADABLE if label else text, label) for text, label in rows]
            if (split, size) == ("test", 60):
                rows[5] = (UNREADABLE, rows[5][1])
            splits[split][f"CHEMBL{900 - 7 * number}"] = rows
            number += 1
    return splits


def write_fsmol_tables(folder: pathlib.Path) -> pathlib.Path:
    """Write the three tables, one of them not compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, assays in fsmol_assays().items():
        path = folder / (f"{split}.csv" if split == "valid" else f"{split}.csv.gz")
        opener: Any = open if split == "valid" else gzip.open
        with opener(path, "wt", newline="") as file:
            table = csv.writer(file)
            table.writerow(["task", "smiles", "label", "value", "assay_type"])
            for name, rows in assays.items():
                table.writerows([name, text, label, "", "B"] for text, label in rows)
    return folder


def write_fsmol_files(folder: pathlib.Path) -> pathlib.Path:
    """Write the publisher's layout: one file per assay, one JSON object per line."""
    for split, assays in fsmol_assays().items():
        (folder / split).mkdir(parents=True)
        for name, rows in assays.items():
            with gzip.open(folder / split / f"{name}.jsonl.gz", "wt") as file:
                for text, label in rows:
                    record = {
                        "SMILES": text,
                        "Property": f"{label:.1f}",
                        "Assay_ID": name,
                        "RegressionProperty": "100.0",
                        "LogRegressionProperty": 7.0,
                        "Relation": "=",
                        "AssayType": "B",
                        "fingerprints": [0, 1, 0],
                        "descriptors": [1.5],
                        "graph": {"adjacency_lists": [[[0, 1]], [], []]},
                    }
                    file.write(json.dumps(record) + "\n")
    return folder


# --------------------------------------------------------------------- miniImageNet

MINI_CLASSES = {
    "train": mini_imagenet._TRAIN + mini_imagenet._ADDITIONAL,
    "val": mini_imagenet._VALIDATION,
    "test": mini_imagenet._TEST,
}


def write_mini_lists(folder: pathlib.Path) -> Expected:
    """Write lists and two plain gray images per class, which JPEG keeps exactly."""
    (folder / "images").mkdir()
    expected = {}
    for split, classes in MINI_CLASSES.items():
        lines = ["filename,label"]
        # As in the release, the lists are not in the order of the paper.
        for number, name in enumerate(sorted(classes)):
            grays = (2 * number, 2 * number + 1)
            for gray, size in zip(grays, ((84, 84), (40, 56)), strict=True):
                file = f"{name}0000{gray:04}.jpg"
                image = Image.new("RGB", size, (gray, gray, gray))
                image.save(folder / "images" / file, quality=100)
                lines.append(f"{file},{name}")
            expected[name] = np.stack([np.full((84, 84, 3), g) for g in grays])
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return expected


def write_mini_cache(folder: pathlib.Path) -> Expected:
    """Write the cache with two or three images per class in random order."""
    rng = np.random.default_rng(0)
    expected = {}
    for split, classes in MINI_CLASSES.items():
        owner = np.concatenate([np.arange(len(classes)).repeat(2), [0]])
        rng.shuffle(owner)
        images = noise(rng, len(owner))
        rows = {
            name: [int(row) for row in np.flatnonzero(owner == number)[::-1]]
            for number, name in enumerate(classes)
        }
        expected |= {name: images[rows[name]] for name in classes}
        content = {"image_data": images, "class_dict": dict(sorted(rows.items()))}
        protocol = 2 if split == "train" else 4
        dump(content, folder / f"mini-imagenet-cache-{split}.pkl", protocol)
    return expected


# ------------------------------------------------------------------- tieredImageNet

TIERED_CLASSES = {
    "train": _tiered_imagenet_classes.TRAIN,
    "val": _tiered_imagenet_classes.VALIDATION,
    "test": _tiered_imagenet_classes.TEST,
}


def _english_name(wordnet_id: str) -> str:
    """An English name; two ids share one, like ImageNet's two cranes."""
    return "crane" if wordnet_id in ("n02012849", "n03126707") else f"a, {wordnet_id}"


def write_tiered_imagenet(folder: pathlib.Path) -> Expected:
    """Write two or three images per class, with classes in an order of its own.

    The arrays of bytes are `[n, 1]` in one split and `[n]` in the others: different
    versions of OpenCV write them in one way or the other.
    """
    rng = np.random.default_rng(0)
    ids = sorted(sum(TIERED_CLASSES.values(), ()) + ("n03126707",))
    names = [_english_name(i) for i in ids]
    (folder / "synsets.txt").write_text("".join(f"{i}\n" for i in ids))
    (folder / "class_names.txt").write_text("".join(f"{name}\n" for name in names))
    expected = {}
    for split, classes in TIERED_CLASSES.items():
        order = rng.permutation(classes)
        labels = np.concatenate([np.arange(len(classes)).repeat(2), np.arange(20)])
        rng.shuffle(labels)
        images = noise(rng, len(labels))
        for number, name in enumerate(order):
            expected[str(name)] = images[labels == number]
        shape = (-1, 1) if split == "train" else (-1,)
        dump(
            [np.frombuffer(png(image), np.uint8).reshape(shape) for image in images],
            folder / f"{split}_images_png.pkl",
        )
        content = {
            "label_specific": labels.astype(np.int32),
            "label_general": np.zeros(len(labels), np.int32),
            "label_specific_str": [_english_name(str(name)) for name in order],
            "label_general_str": ["thing"],
        }
        dump(content, folder / f"{split}_labels.pkl", 2)
    return expected


# -------------------------------------------------------------------------- DermNet

DERMNET_TRAIN = _dermnet_classes.TRAIN + _dermnet_classes.ADDITIONAL


def dermnet_path(folder: pathlib.Path, name: str, style: int) -> pathlib.Path:
    """The path of an image of a class, in one of the accepted naming styles."""
    slug = "-".join(name.replace("(", "").replace(")", "").split())
    return (
        folder / name / "1.png",
        folder / "atlas" / slug / "photo.PNG",
        folder / "train" / "Some Photos" / f"{slug.lower()}-001.png",
        folder / "test" / "Some Photos" / f"{slug.upper()}-2.png",
    )[style]


def write_dermnet(folder: pathlib.Path) -> Expected:
    """Write two images per class in four naming styles, and files to skip."""
    rng = np.random.default_rng(0)
    expected = {}
    for number, name in enumerate(DERMNET_TRAIN + _dermnet_classes.TEST):
        images = noise(rng, 2)
        files = [dermnet_path(folder, name, (number + i) % 4) for i in range(2)]
        for file, image in zip(files, images, strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(image))
        in_order = sorted(range(2), key=files.__getitem__)
        expected[name] = images[in_order]
    shutil.copy(files[0], files[0].with_name(f"{files[0].stem}9.png"))
    (folder / "Unheard Of").mkdir()
    (folder / "Unheard Of" / "07RosaceaK0216.png").write_bytes(png(images[0]))
    (folder / "Unheard Of" / "unheard-1.jpg").write_bytes(b"never read")
    (folder / _dermnet_classes.TRAIN[0] / "Thumbs.db").write_bytes(b"not an image")
    return expected


# ------------------------------------------------------------------------- Huffpost


def huffpost_records(field: str = "raw") -> list[dict[str, Any]]:
    """Three titles of each class, the last label first."""
    records = []
    for number in range(3):
        for label in reversed(range(41)):
            tokens = ["common", f"word{label}", f"number{number}"]
            title = tokens if field == "text" else " ".join(tokens)
            records.append({field: title, "label": label})
    return records


def write_huffpost(
    folder: pathlib.Path, lines: Iterable[str | dict[str, Any]] | None = None
) -> pathlib.Path:
    """Write lines or records; `huffpost_records` by default."""
    folder.mkdir(exist_ok=True)
    lines = huffpost_records() if lines is None else lines
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "huffpost.json").write_text("\n".join(texts) + "\n")
    return folder


# --------------------------------------------------------------------- Tabula Muris

CELL_FILE = "tabula-muris-comet.h5ad"
CELL_TYPE = "cell_ontology_class_reannotated"
GENES = 700


def cell_table():
    """Organ and type of about 800 cells, shuffled."""
    pd = pytest.importorskip("pandas")
    train, validation, test = tabula_muris._ORGANS.values()
    rows = []

    def add(number, cell_type, organs):
        rows.extend((organs[i % len(organs)], cell_type) for i in range(number))

    add(150, "T cell", train)  # in all three splits, pooled over organs
    add(60, "T cell", validation)
    add(60, "T cell", test)
    add(90, "B cell", train)
    add(80, "keratinocyte", validation)
    add(80, "acinar cell", test)
    add(20, "just enough", ("Liver", "Kidney"))
    add(19, "too few", ("Liver", "Kidney"))
    add(19, "in two splits", ("Heart",))  # 19 and 2: too few in each
    add(2, "in two splits", ("Skin",))
    add(22, "few are usable", ("Marrow",))  # three of them are shallow, see below
    add(30, "NA", ("Spleen",))
    add(30, np.nan, ("Tongue",))
    table = pd.DataFrame(rows, columns=["tissue", CELL_TYPE])
    table = table.sample(frac=1, random_state=0)
    table.index = [f"cell{i}" for i in range(len(table))]
    return table


def cell_counts(table) -> np.ndarray:
    """Count that cover every case of the filters, int `[M, GENES]`."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    mean = np.exp(rng.uniform(0.5, 4.5, GENES))
    spread = rng.uniform(0.3, 8, GENES)
    activity = 1 + 2 * rng.random((4, GENES))
    kind = pd.factorize(table[CELL_TYPE].astype(str))[0] % 4
    counts = rng.negative_binomial(spread, spread / (spread + mean * activity[kind]))
    counts[:, :10] = 0  # Genes in 0 to 9 annotated cells.
    annotated = np.flatnonzero(~table[CELL_TYPE].astype(str).isin(["nan", "NA"]))
    for gene in range(10):
        counts[annotated[100 : 100 + gene], gene] = 5000 if gene == 5 else 50
    counts[:, 4] += (table[CELL_TYPE] == "NA") * 9  # enough cells, but not annotated
    # The only gene in the highest bin; two cells lack it and are far below the mean.
    counts[:, 10] = 15_000
    counts[annotated[[50, 60]], 10] = 0
    counts[:, 11] = 0  # A gene that is expressed only in cells that are dropped.
    common = np.flatnonzero(table[CELL_TYPE] == "T cell")
    shallow = np.flatnonzero(table[CELL_TYPE] == "few are usable")[:3]
    shallow = np.concatenate([shallow, common[:5]])
    counts[shallow] = np.arange(GENES) > 10
    counts[shallow] *= 6  # about 4,100 counts, less than 5,000
    narrow = common[5:10]
    counts[narrow, 480:] = 0  # many counts in fewer than 500 genes
    return counts


def write_cells(folder: pathlib.Path, counts, table, layout="csr") -> pathlib.Path:
    """Write counts and table; `layout` is `csr`, `csc`, `dense` or `old`."""
    anndata = pytest.importorskip("anndata")
    pd = pytest.importorskip("pandas")
    folder.mkdir(exist_ok=True)
    x = counts.astype(np.float32)
    x = x if layout == "dense" else scipy.sparse.csr_matrix(x)
    if layout == "csc":
        x = x.tocsc()
    genes = pd.DataFrame(index=[f"gene{i}" for i in range(counts.shape[1])])
    path = folder / CELL_FILE
    if layout == "old":
        _write_old_cells(path, x, table, genes)
    else:
        anndata.AnnData(x, table.astype("category"), genes).write_h5ad(path)
    return folder


def _write_old_cells(path: pathlib.Path, x, table, genes) -> None:
    """The layout before anndata 0.7, which most files of 2019 and 2020 have."""
    h5py = pytest.importorskip("h5py")
    pd = pytest.importorskip("pandas")
    kinds = [("index", "S20"), ("tissue", "i1"), (CELL_TYPE, "i1")]
    obs = np.zeros(len(table), kinds)
    obs["index"] = [name.encode() for name in table.index]
    with h5py.File(path, "w") as file:
        for column in ("tissue", CELL_TYPE):
            codes, names = pd.factorize(table[column], sort=True)
            obs[column] = codes
            file[f"uns/{column}_categories"] = [name.encode() for name in names]
        file["obs"] = obs
        var = np.zeros(len(genes), [("index", "S20")])
        var["index"] = [name.encode() for name in genes.index]
        file["var"] = var
        group = file.create_group("X")
        group.attrs["h5sparse_format"] = "csr"
        group.attrs["h5sparse_shape"] = x.shape
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(x, part)
