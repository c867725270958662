"""Checkpoints of ALBERT against transformers, and token features of Huffpost."""

import functools
import json
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, data
from mlti_jax._internal import extras
from mlti_jax.backbones import _text as text
from mlti_jax.backbones._albert_checkpoint import (
    NAMES,
    AlbertConfig,
    load_pretrained,
    shapes,
)
from mlti_jax.backbones._albert_checkpoint import SIZES as CONFIG_NAMES
from mlti_jax.data._readers import tokens
from mlti_jax.errors import InputError
from tests.support.raw_files import prepare
from tests.support.releases import write_huffpost
from tests.support.text_cases import ALBERT_SIZES, sentences

KEY = jax.random.key(0)


# -------------------------------------------------------------------- checkpoints


def save_checkpoint(folder, seed=0, change=None, prefix="", pooler=True, **fields):
    """Writes a small checkpoint; `change` may edit its tensors."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(seed)
    config = AlbertConfig(**ALBERT_SIZES)
    tensors = {}
    for part, names in NAMES.items():
        for ours, theirs in names.items():
            shape = shapes(config)[part][ours]
            shape = shape[::-1] if ours.endswith("kernel") else shape
            values = rng.normal(0, 0.2, shape).astype(np.float32)
            if part != "dense" or pooler:
                tensors[prefix + theirs] = values
    if change is not None:
        change(tensors)
    folder.mkdir(exist_ok=True)
    numpy_files.save_file(tensors, folder / "model.safetensors")
    sizes = {theirs: getattr(config, ours) for ours, theirs in CONFIG_NAMES.items()}
    written = {
        "model_type": "albert",
        "hidden_act": "gelu_new",
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        **sizes,
        **fields,
    }
    written = {name: value for name, value in written.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def test_checkpoint_initializes_parameters(tmp_path):
    folder = save_checkpoint(tmp_path / "a")
    loaded = load_pretrained(folder)
    assert loaded.config == AlbertConfig(**ALBERT_SIZES)
    stack = backbones.make("albert", pretrained=str(folder))
    x = sentences([2, 3], 4)
    params, _ = stack.init(KEY, x)
    assert len(stack) == len(params) == 6
    for layer, part in ((0, "embeddings"), (1, "encoder"), (5, "dense")):
        chex.assert_trees_all_close(params[layer], loaded.params[part])
    # Another key gives the same parameters, except those not in the checkpoint.
    stack = backbones.albert(pretrained=folder, pool="mean")
    other, _ = stack.init(jax.random.key(1), x)
    chex.assert_trees_all_close(other[:5], params[:5])
    assert np.abs(other[5]["kernel"] - params[5]["kernel"]).max() > 0.01


def test_checkpoint_of_a_larger_model(tmp_path):
    bare = load_pretrained(save_checkpoint(tmp_path / "a", pooler=False))
    part = save_checkpoint(tmp_path / "b", prefix="albert.", pooler=False)
    chex.assert_trees_all_close(load_pretrained(part).params, bare.params)
    assert set(bare.params) == {"embeddings", "encoder"}


def set_nan(tensors):
    tensors["embeddings.LayerNorm.bias"][2] = np.nan


def set_shape(tensors):
    name = "encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    tensors[name] = tensors[name][:, :5].copy()


def remove(tensors):
    del tensors["encoder.embedding_hidden_mapping_in.bias"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"change": set_nan}, r"model.safetensors: .* embeddings.LayerNorm.bias .*NaN"),
        ({"change": set_shape}, r"ffn.weight has shape \[48, 5\]; expected \[48, 32\]"),
        ({"change": remove}, "has no tensor encoder.embedding_hidden_mapping_in.bias"),
        ({"model_type": "bert"}, "config.json has model_type 'bert'; .*'albert'"),
        ({"hidden_act": "gelu"}, "has hidden_act 'gelu'; expected 'gelu_new'"),
        ({"num_hidden_groups": 2}, "has num_hidden_groups 2; expected 1"),
        ({"hidden_size": ...}, "config.json has no hidden_size"),
        ({"num_hidden_layers": "3"}, "config.json: ALBERT's layers is '3'"),
        ({"layer_norm_eps": None}, "config.json: "),
    ],
)
def test_bad_checkpoints(tmp_path, options, message):
    folder = save_checkpoint(tmp_path / "bad", **options)
    with pytest.raises(InputError, match=message):
        load_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_and_damaged_files(tmp_path, name):
    folder = save_checkpoint(tmp_path / "bad")
    path = folder / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match=f"{name} .*download it again"):
        load_pretrained(folder)
    path.unlink()
    with pytest.raises(InputError, match=f"{name} not found; expected the folder"):
        load_pretrained(folder)


@pytest.mark.parametrize("package", ["safetensors", "tokenizers", "wordllama"])
def test_missing_packages(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    calls = {
        "safetensors": lambda: load_pretrained(tmp_path),
        "tokenizers": lambda: tokens.load_tokenizer(tmp_path / "tokenizer.json"),
        "wordllama": lambda: extras.package_file(
            "wordllama", text.WORDLLAMA_TABLE, "text"
        ),
    }
    with pytest.raises(InputError, match=f"package '{package}'; pip install .*text"):
        calls[package]()


# ------------------------------------------------------------------------- parity


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["AlbertModel", "AlbertForSequenceClassification"])
def test_albert_equals_transformers(tmp_path, kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AlbertConfig(
        vocab_size=50,
        embedding_size=8,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=12,
    )
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            # Normalization far from the identity, biases far from zero.
            noise = 0.3 * torch.randn(values.shape)
            scale = "norm.weight" in name.lower()
            values.copy_(1 + noise if scale else noise)
    model.save_pretrained(tmp_path)

    x = sentences([9, 1, 5, 7], 9)
    encoder = model if kind == "AlbertModel" else model.albert
    with torch.no_grad():
        theirs = encoder(
            torch.from_numpy(np.array(x["ids"])).long(),
            attention_mask=torch.from_numpy(np.array(x["mask"])).long(),
            output_hidden_states=True,
        )
    stack = backbones.albert(pretrained=tmp_path)
    params, state = stack.init(KEY, x)
    mask = np.asarray(x["mask"])[..., None]
    assert len(theirs.hidden_states) == 4
    for layer, expected in enumerate(theirs.hidden_states, start=1):
        ours, _ = stack.apply(params, state, x, 0, layer)
        np.testing.assert_allclose(ours["h"], expected.numpy() * mask, atol=1e-4)
    last = theirs.last_hidden_state.numpy() * mask
    np.testing.assert_allclose(ours["h"], last, atol=1e-4)
    pooled, _ = stack.apply(params, state, x)
    np.testing.assert_allclose(pooled, theirs.pooler_output.numpy(), atol=1e-4)
    averaged, _ = backbones.albert(pretrained=tmp_path, pool="mean").apply(
        params, state, x, 0, 5
    )
    np.testing.assert_allclose(averaged, last.sum(1) / mask.sum(1), atol=1e-4)


# ------------------------------------------------------------- features of Huffpost


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    raw = write_huffpost(tmp_path_factory.mktemp("raw"))
    data_dir = tmp_path_factory.mktemp("data")
    prepare("huffpost", raw, data_dir)
    return data_dir


@pytest.fixture
def tokenizer_folder(tmp_path):
    """A tokenizer of a few words with start and end tokens, like ALBERT's."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<pad>", "<unk>", "[CLS]", "[SEP]", "common", "word0", "number1"]
    vocabulary = {word: i for i, word in enumerate(words)}
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_padding(length=40)  # must have no effect
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_features_of_a_checkpoint(small, tokenizer_folder):
    load = functools.partial(
        data.load,
        "huffpost",
        data_dir=small,
        features="albert",
        tokenizer=str(tokenizer_folder),
    )
    splits = load(max_tokens=7)
    x = splits.train.x
    assert x["ids"].shape == x["mask"].shape == (75, 7)
    assert x["ids"].dtype == jnp.int32
    # "common word0 number0" and "common word0 number1"
    np.testing.assert_array_equal(x["ids"][0], [2, 4, 5, 1, 3, 0, 0])
    np.testing.assert_array_equal(x["ids"][1], [2, 4, 5, 6, 3, 0, 0])
    np.testing.assert_array_equal(x["mask"][0], [1, 1, 1, 1, 1, 0, 0])
    assert "7 tokens of albert" in splits.note
    cut = load(max_tokens=4).train.x
    np.testing.assert_array_equal(cut["ids"][0], [2, 4, 5, 3])
    assert load().test.x["ids"].shape == (30, 32)
    # In a task, ids stay integers and the mask can be mixed.
    task = data.sample_task(splits.train, KEY, ways=3, shots=1, queries=2)
    assert task.query.x["ids"].dtype == jnp.int32
    assert task.query.x["mask"].dtype == jnp.float32
    stack = backbones.albert(**ALBERT_SIZES)
    out, _ = stack.apply(*stack.init(KEY, task.support.x), task.support.x)
    assert np.isfinite(out).all()


def test_features_of_wordllama(small):
    pytest.importorskip("wordllama")
    tokenizers = pytest.importorskip("tokenizers")
    splits = data.load("huffpost", data_dir=small, features="wordllama", max_tokens=10)
    path = str(extras.package_file("wordllama", tokens.WORDLLAMA_TOKENIZER, "text"))
    tokenizer = tokenizers.Tokenizer.from_file(path)
    ids = tokenizer.encode("common word2 number1", add_special_tokens=False).ids
    x = splits.train.x
    np.testing.assert_array_equal(x["ids"][7, : len(ids)], ids)
    np.testing.assert_array_equal(x["mask"][7], np.arange(10) < len(ids))
    assert splits.validation.x["ids"].shape == (18, 10)
    assert "10 tokens of wordllama" in splits.note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'albert' .* need the option tokenizer"),
        ({"tokenizer": "/nowhere"}, "tokenizer /nowhere/tokenizer.json not found"),
        ({"tokenizer": ..., "max_tokens": 2}, "max_tokens is 2; .* from 3 to 512"),
        ({"tokenizer": ..., "max_tokens": 513}, "max_tokens is 513"),
        ({"tokenizer": ..., "max_tokens": None}, "max_tokens is None"),
    ],
)
def test_bad_features(small, tokenizer_folder, options, message):
    if options.get("tokenizer") is ...:
        options = options | {"tokenizer": tokenizer_folder}
    with pytest.raises(InputError, match=message):
        data.load("huffpost", data_dir=small, features="albert", **options)


def test_invalid_tokenizer_file(small, tokenizer_folder):
    path = tokenizer_folder / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(
        InputError, match=r"can't read .*tokenizer.json as a tokenizer .*again"
    ):
        tokens.load_tokenizer(path)
