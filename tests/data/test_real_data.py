"""Real releases: preparation, counts, and a few training steps."""

import gzip
import json

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import run
from experiments.config import CONFIG_DIR
from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data.builders import fsmol
from mlti_jax.errors import InputError
from tests.support.raw_files import prepare

pytestmark = pytest.mark.slow

FOLDERS = {
    "rainbow_mnist": "mnist",
    "pose": "pose",
    "nci": "nci",
    "metabolism": "metabolism",
    "isic": "isic2018",
    "huffpost": "huffpost",
    "mini_imagenet": "miniimagenet",
    "dermnet": "dermnet",
}


@pytest.fixture(scope="module")
def prepare_real(tmp_path_factory):
    """A function that prepares a release once and returns its data directory."""
    data_dir = tmp_path_factory.mktemp("real")

    def prepare_once(name, raw_dir):
        folder = raw_dir / FOLDERS[name]
        if not folder.is_dir():
            pytest.skip(f"MLTI_RAW_DIR has no folder {FOLDERS[name]}")
        prepare(name, folder, data_dir, processes=2)
        return data_dir

    return prepare_once


def counts(name, data_dir):
    """Records per group, and the number of skipped ones per reason."""
    builder = prepared.open_prepared(name, data_dir)
    groups = {}
    for split in builder.info.splits:
        groups.update(prepared.counts(builder, split))
    totals = {group: prepared.total(count) for group, count in groups.items()}
    return totals, builder.info.metadata["skipped"]


def test_nci(prepare_real, raw_dir):
    data_dir = prepare_real("nci", raw_dir)
    kept, skipped = counts("nci", data_dir)
    records = dict(kept)
    for reason, number in skipped.items():
        records[reason.partition(":")[0]] += number
    assert records == {
        "1": 3586,
        "33": 2934,
        "41": 2700,
        "47": 3470,
        "81": 4162,
        "83": 3918,
        "109": 3546,
        "123": 5430,
        "145": 3282,
    }
    assert 0.005 < sum(skipped.values()) / sum(records.values()) < 0.03
    splits = data.load("nci", data_dir=data_dir)
    assert splits.train.count.sum(axis=1).tolist() == [1000] * 6
    assert splits.test.count.sum(axis=1).tolist() == [1000] * 3


def test_metabolism(prepare_real, raw_dir):
    data_dir = prepare_real("metabolism", raw_dir)
    kept, skipped = counts("metabolism", data_dir)
    assert not skipped
    assert kept == {
        "cyp1a2_veith": 12579,
        "cyp2c19_veith": 12665,
        "cyp2c9_veith": 12092,
        "cyp2d6_veith": 13130,
        "cyp3a4_veith": 12328,
        "cyp2c9_substrate_carbonmangels": 669,
        "cyp2d6_substrate_carbonmangels": 667,
        "cyp3a4_substrate_carbonmangels": 670,
    }
    paper = data.load("metabolism", data_dir=data_dir)
    assert paper.train.count.tolist() == [[500, 500]] * 3 + [[141, 141], [191, 191]]
    disjoint = data.load("metabolism", data_dir=data_dir, split="disjoint")
    assert len(disjoint.train.domains) == 3
    assert (disjoint.test.x == paper.test.x).all()


def test_pose(prepare_real, raw_dir):
    kept, _ = counts("pose", prepare_real("pose", raw_dir))
    assert len(kept) == 46 + 15
    assert set(kept.values()) == {100}


def test_isic(prepare_real, raw_dir):
    kept, _ = counts("isic", prepare_real("isic", raw_dir))
    assert kept == {
        "MEL": 907,
        "NV": 5989,
        "BCC": 460,
        "AKIEC": 301,
        "BKL": 957,
        "DF": 97,
        "VASC": 124,
    }


def test_mini_imagenet(prepare_real, raw_dir):
    data_dir = prepare_real("mini_imagenet", raw_dir)
    kept, skipped = counts("mini_imagenet", data_dir)
    assert len(kept) == 12 + 16 + 20
    assert set(kept.values()) == {600}
    assert not skipped
    splits = data.load("mini_imagenet", data_dir=data_dir)
    assert [len(p.classes) for p in (splits.train, splits.validation, splits.test)] == [
        12,
        16,
        20,
    ]
    with pytest.raises(InputError, match="lacks 52 of 64 train classes: n03476684, n"):
        data.load("mini_imagenet", data_dir=data_dir, train_classes=64)


def test_dermnet(prepare_real, raw_dir):
    data_dir = prepare_real("dermnet", raw_dir)
    kept, skipped = counts("dermnet", data_dir)
    assert len(kept) == 198
    # 141 images occur in two or more classes.
    assert skipped == {"the same image occurs in other classes": 284}
    assert sum(kept.values()) == 12_886 - 284
    metadata = prepared.open_prepared("dermnet", data_dir).info.metadata
    assert metadata["missing"] == {
        "train": [
            "Atopic Dermatitis Adult Phase",
            "Atopic Dermatitis Childhood Phase",
            "Atopic Dermatitis Infant phase",
        ],
        "test": ["Ichthyosis Other Forms", "Ichthyosis Dominant"],
    }
    assert metadata["notes"][0].startswith("141 images occur in two or more classes")
    assert "43 of them in a training and a test class (1 for" in metadata["notes"][0]
    splits = data.load("dermnet", data_dir=data_dir, min_images=20)
    assert (len(splits.train.classes), len(splits.test.classes)) == (29, 46)
    with pytest.raises(InputError, match="lacks 1 of 30 train .*; 2 of 53 test clas"):
        data.load("dermnet", data_dir=data_dir, missing_classes="refuse")


def test_huffpost(prepare_real, raw_dir):
    kept, _ = counts("huffpost", prepare_real("huffpost", raw_dir))
    assert len(kept) == 41
    assert set(kept.values()) == {900}


def write_part_of_fsmol(folder, raw_dir):
    """Write the first assays of the real tables; computing all features takes long."""
    folder.mkdir()
    for split, number in (("train", 30), ("valid", 3), ("test", 4)):
        lines = gzip.decompress(
            (raw_dir / "fsmol" / f"{split}.csv.gz").read_bytes()
        ).splitlines(keepends=True)
        names = dict.fromkeys(line.partition(b",")[0] for line in lines[1:])
        kept = set(list(names)[:number])
        rows = [line for line in lines[1:] if line.partition(b",")[0] in kept]
        content = gzip.compress(b"".join([lines[0], *rows]))
        (folder / f"{split}.csv.gz").write_bytes(content)
    return folder


def test_fsmol(raw_dir, tmp_path):
    if not (raw_dir / "fsmol").is_dir():
        pytest.skip("MLTI_RAW_DIR has no folder fsmol")
    pytest.importorskip("rdkit.Chem")
    sizes = {
        split: (len(assays), sum(len(assay.labels) for assay in assays.values()))
        for split in ("train", "valid", "test")
        for assays in [fsmol._read_table(raw_dir / "fsmol" / f"{split}.csv.gz")]
    }
    assert sizes == {
        "train": (4935, 412_402),
        "valid": (39, 14_311),
        "test": (157, 56_220),
    }
    raw = write_part_of_fsmol(tmp_path / "raw", raw_dir)
    prepare("fsmol", raw, tmp_path / "data", processes=2)
    splits = data.load("fsmol", data_dir=tmp_path / "data", train_classes=8)
    assert len(splits.train.domains) == 8
    assert int(splits.train.count.min()) >= 16
    assert (len(splits.validation.domains), len(splits.test.domains)) == (3, 4)
    for pool in (splits.train, splits.validation, splits.test):
        ranks = np.asarray(pool.x)[:, 2048:] / 255
        assert 0.2 < ranks.mean() < 0.8
        # Drug-like molecules set about fifty of the 2,048 bits.
        assert 30 < (np.asarray(pool.x)[:, :2048] > 0).sum(axis=1).mean() < 80


def test_prepared_rainbow_mnist_equals_the_idx_files(prepare_real, raw_dir):
    data_dir = prepare_real("rainbow_mnist", raw_dir)
    kept, _ = counts("rainbow_mnist", data_dir)
    assert len(kept) == 56
    assert set(kept.values()) == {1000}
    records = data.load("rainbow_mnist", data_dir=data_dir)
    files = data.load("rainbow_mnist", data_dir=raw_dir)
    assert (records.source, files.source) == ("prepared", "idx")
    for split in ("train", "validation", "test"):
        one, other = getattr(records, split), getattr(files, split)
        assert one.domains == other.domains
        for field in ("x", "index", "count"):
            assert (getattr(one, field) == getattr(other, field)).all()


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("rainbow_mnist", "learner=maml,strategy=mlti"),
        ("pose", "learner=maml,strategy=mlti"),
        ("nci", "learner=maml,strategy=mlti"),
        ("nci", "learner=protonet,strategy=mlti,split=disjoint"),
        ("metabolism", "learner=protonet,strategy=mlti"),
        ("isic", "learner=protonet,strategy=mlti,shots=5"),
        ("mini_imagenet", "learner=protonet,strategy=mlti"),
        ("dermnet", "learner=protonet,strategy=mlti,shots=5"),
        ("huffpost", "learner=protonet,strategy=mlti,shots=5"),
    ],
)
def test_configs_train_and_evaluate(prepare_real, raw_dir, tmp_path, name, argument):
    config = f"{CONFIG_DIR / name}.py:{argument}"
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(
        data_dir=str(prepare_real(name, raw_dir)), workdir=str(tmp_path)
    ):
        flags.FLAGS["config"].parse(config)
        chosen = flags.FLAGS["config"].value
        with chosen.unlocked():
            chosen.train.steps = 2
            chosen.train.meta_batch_size = min(chosen.train.meta_batch_size, 2)
            chosen.eval.update({"num_tasks": 2, "validation_tasks": 2, "every": 2})
            chosen.eval.tasks_per_pass = 2
            chosen.learner.maml.steps = chosen.learner.maml.eval_steps = 1
            chosen.backbone.conv4.filters = 4
        run.main()
    result = json.loads((tmp_path / "results.json").read_text())
    assert result["dataset"] == name
    assert result["step"] == 2
    assert len(result["per_task"]) == 2
