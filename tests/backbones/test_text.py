"""Text backbones: ALBERT, word vectors and masks."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, learners
from mlti_jax import interpolation as itp
from mlti_jax._internal import extras
from mlti_jax.backbones import Context, Stack
from mlti_jax.backbones import _text as text
from mlti_jax.backbones._layers import Head
from mlti_jax.data._pools import take_inputs
from mlti_jax.data._readers.tokens import wordllama_encoder
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.types import Batch, Task
from tests.support.text_cases import ALBERT_SIZES, sentences

KEY = jax.random.key(0)
SMALL = functools.partial(backbones.albert, **ALBERT_SIZES)
SEQUENCE_LAYERS = range(1, 5)  # layers with a sequence as input; 4 is the pooling
TABLE = text.Table(jax.random.normal(KEY, (50, 6)))
# `word_mean` with a small table.
WORDS = Stack((text.TokenMean(TABLE), backbones.DenseBlock(7, norm=False)))


def text_task(seed=0, ways=3, shots=2):
    """A task of sentences with 2 to 7 tokens, as from a pool."""
    size = ways * shots
    lengths = np.random.default_rng(seed).integers(2, 8, 2 * size)
    x = take_inputs(sentences(lengths, 8, seed), jnp.arange(2 * size))
    y = jnp.repeat(jnp.eye(ways), shots, axis=0)
    support, query = (
        Batch(jax.tree.map(lambda leaf, p=part: leaf[p], x), y)
        for part in (slice(None, size), slice(size, None))
    )
    return Task(support, query, jnp.int32(seed))


# --------------------------------------------------------------------- the stacks


@pytest.mark.parametrize(
    ("stack", "embedding"),
    [(SMALL(), 32), (SMALL(pool="mean"), 32), (WORDS, 7)],
    ids=["first", "mean", "words"],
)
def test_every_split_equals_the_whole(stack, embedding):
    stack = stack.append(Head(5))
    x = sentences([1, 4, 9, 0], 9)
    params, state = jax.jit(stack.init)(KEY, x)
    context = Context(train=True)

    @jax.jit
    def run(params, state, x):
        results = [stack.apply(params, state, x, context=context)]
        for layer in range(1, len(stack)):
            middle, new = stack.apply(params, state, x, 0, layer, context)
            results.append(stack.apply(params, new, middle, layer, context=context))
        return results, middle

    (whole, *splits), last = run(params, state, x)
    assert whole[0].shape == (4, 5)
    assert last.shape == (4, embedding)
    assert np.isfinite(whole[0]).all()
    for split in splits:
        chex.assert_trees_all_close(split, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_tied_layers_have_one_set_of_parameters():
    stack = SMALL().append(Head(5))
    assert stack.tied == (0, 1, 1, 1, 4, 5, 6)
    x = sentences([3, 5], 5)
    params, state = jax.jit(stack.init)(KEY, x)
    assert [bool(layer) for layer in params] == [1, 1, 0, 0, 0, 1, 1]
    untied = Stack(stack.layers)
    copies = (params[0], params[1], params[1], params[1], *params[4:])
    np.testing.assert_allclose(
        stack.apply(params, state, x)[0], untied.apply(copies, state, x)[0], atol=1e-6
    )

    def loss(stack, params):
        return (stack.apply(params, state, x)[0] ** 2).sum()

    # The gradient of the shared parameters is the sum over the layers.
    shared = jax.grad(functools.partial(loss, stack))(params)
    each = jax.grad(functools.partial(loss, untied))(copies)
    summed = jax.tree.map(lambda *g: sum(g), *each[1:4])
    chex.assert_trees_all_close(shared[1], summed, rtol=1e-4, atol=1e-5)


def test_tied_layers_have_separate_running_averages():
    block = backbones.DenseBlock(4)
    stack = Stack((block, block), (0, 0))
    x = jax.random.normal(KEY, (6, 4))
    params, state = stack.init(KEY, x)
    assert params[1] == {}
    _, new = stack.apply(params, state, x, context=Context(train=True))
    means = [layer["norm"]["mean"] for layer in new]
    assert np.abs(means[0] - means[1]).max() > 1e-3


def test_ids_outside_the_table_give_nan():
    stack = SMALL()
    x = sentences([2, 2], 2)
    params, state = stack.init(KEY, x)
    x["ids"] = x["ids"].at[0, 0].set(50)
    out, _ = stack.apply(params, state, x)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1]).all()


@pytest.mark.parametrize("stack", [SMALL(), WORDS], ids=["albert", "words"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (jnp.ones((2, 3)), "takes {'ids'"),
        ({"ids": jnp.ones((2, 3), int)}, r"got \['ids'\]"),
        ({"ids": jnp.ones((2, 3)), "mask": jnp.ones((2, 3))}, "layers from 1 on"),
        ({"ids": jnp.ones((2, 3), int), "mask": jnp.ones((2, 4))}, "shape .2, 3."),
    ],
)
def test_bad_inputs(stack, x, message):
    with pytest.raises(InputError, match=message):
        stack.init(KEY, x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "last"}, "unknown pooling of ALBERT 'last'; choose .* first, mean"),
        ({"width": 3}, "unknown option of backbone albert 'width'"),
        ({"heads": 5}, "hidden is 32; expected a multiple of heads .5."),
        ({"layers": 0}, "ALBERT's layers is 0"),
        ({"pretrained": "folder"}, "sizes are those of the checkpoint folder"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        backbones.make("albert", **{**ALBERT_SIZES, **options})


def test_sequences_longer_than_the_positions():
    with pytest.raises(InputError, match="13 tokens, but ALBERT has 12 positions"):
        SMALL().init(KEY, sentences([13], 13))


# ------------------------------------------------------------------ interpolation


@functools.cache
def albert_variables(pool="mean"):
    stack = SMALL(pool=pool)
    return stack, *jax.jit(stack.init)(KEY, sentences([3], 12))


@functools.cache
def mixed_output(pool, layer):
    """A function that mixes two sets of sentences at a layer and runs the rest."""
    stack, params, state = albert_variables(pool)

    @jax.jit
    def run(x_i, x_j, lam):
        h_i, h_j = (stack.apply(params, state, x, 0, layer)[0] for x in (x_i, x_j))
        h = itp.mix(itp.mixup(KEY, lam, h_i), h_i, h_j)
        return h, stack.apply(params, state, h, layer)[0]

    return run


@pytest.mark.parametrize("pool", ["first", "mean"])
@pytest.mark.parametrize("layer", SEQUENCE_LAYERS)
def test_padding_has_no_influence_on_mixed_sequences(pool, layer):
    run, lengths = mixed_output(pool, layer), ([2, 5, 6, 1], [6, 5, 3, 2])
    # The longest sentence has 6 tokens; the rest is padding in both.
    narrow = run(*(sentences(n, 6, seed) for seed, n in enumerate(lengths)), 0.3)
    wide = run(*(sentences(n, 10, seed) for seed, n in enumerate(lengths)), 0.3)
    np.testing.assert_allclose(wide[1], narrow[1], atol=1e-5)
    # Other ids at padding have no effect either.
    x_i, x_j = (sentences(n, 6, seed) for seed, n in enumerate(lengths))
    x_i["ids"] = jnp.where(x_i["mask"], x_i["ids"], 7)
    np.testing.assert_allclose(run(x_i, x_j, 0.3)[1], narrow[1], atol=1e-5)
    # A token of the longer sequence has an effect.
    x_j["ids"] = x_j["ids"].at[0, 5].add(1)
    changed = np.abs(run(x_i, x_j, 0.3)[1] - narrow[1]).max(axis=1)
    assert changed[0] > 1e-4
    assert changed[1:].max() < 1e-5


@pytest.mark.parametrize("layer", SEQUENCE_LAYERS)
def test_mask_of_a_mixed_sequence_is_the_union(layer):
    stack, params, state = albert_variables()
    x_i, x_j = sentences([2, 4, 1], 5, 1), sentences([5, 1, 1], 5, 2)
    h, out = mixed_output("mean", layer)(x_i, x_j, 0.7)
    m_i, m_j = (np.asarray(x["mask"], np.float32) for x in (x_i, x_j))
    union = np.maximum(m_i, m_j)
    np.testing.assert_array_equal(np.asarray(h["mask"]) > 0, union)
    h_i, h_j = (
        np.asarray(stack.apply(params, state, x, 0, layer)[0]["h"]) for x in (x_i, x_j)
    )
    by_hand = 0.7 * h_i * m_i[..., None] + 0.3 * h_j * m_j[..., None]
    np.testing.assert_allclose(h["h"], by_hand, atol=1e-6)
    # The same with the union of the masks passed to the layers above.
    by_hand = {"h": jnp.asarray(by_hand), "mask": jnp.asarray(union, jnp.int32)}
    expected, _ = stack.apply(params, state, by_hand, layer)
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_lam_1_keeps_the_first_sequence():
    stack, params, state = albert_variables()
    x_i, x_j = sentences([2, 4], 5, 1), sentences([5, 1], 5, 2)
    _, out = mixed_output("mean", 2)(x_i, x_j, 1.0)
    np.testing.assert_allclose(out, stack.apply(params, state, x_i)[0], atol=1e-5)


# --------------------------------------------------------------- learners on text


@pytest.mark.slow
@pytest.mark.parametrize(
    "stack",
    [backbones.albert(**ALBERT_SIZES | {"layers": 2}), WORDS],
    ids=["albert", "words"],
)
@pytest.mark.parametrize(
    ("name", "options"), [("protonet", {}), ("maml", {"steps": 1})]
)
def test_learners(stack, name, options):
    learner = learners.make(name, stack, outputs=3, **options)
    task_i, task_j = text_task(1), text_task(2)
    variables = learner.init(KEY, task_i.support.x)
    layers = sorted({0, 1, learner.deepest_mixing_layer})

    @jax.jit
    def run(variables):
        def loss(params, layer):
            current = variables.replace(params=params)
            parts = [
                learner.embed(current, task, TaskContext(KEY, True), layer)[0]
                for task in (task_i, task_j)
            ]
            mixed = itp.non_label_sharing(KEY, *parts, 0.4) if layer else task_i
            return learner.loss(current, mixed, TaskContext(KEY, True), layer)[0]

        return [jax.value_and_grad(loss)(variables.params, layer) for layer in layers]

    for loss, grads in run(variables):
        assert np.isfinite(loss)
        chex.assert_tree_all_finite(grads)
        norms = [jax.tree.map(jnp.linalg.norm, layer) for layer in grads["model"]]
        assert all(sum(jax.tree.leaves(n)) > 0 for n in norms if n)
    outputs = learner.predict(
        variables, task_i.support, task_i.query.x, TaskContext(KEY)
    )
    assert outputs.shape == (6, 3)
    assert np.isfinite(outputs).all()


def test_tokens_are_not_interpolated():
    learner = learners.make("protonet", WORDS, outputs=3)
    task = text_task(1)
    variables = learner.init(KEY, task.support.x)
    mixed = itp.non_label_sharing(KEY, task, text_task(2), 0.4)
    with pytest.raises(InputError, match="can't be interpolated: use layers from 1"):
        learner.loss(variables, mixed, TaskContext(KEY, True), 0)


# ------------------------------------------------------------------- word vectors


@pytest.mark.parametrize("mask_type", [bool, np.int32, np.float32])
def test_mean_of_words_by_hand(mask_type):
    x = sentences([3, 1, 8, 0], 8)
    x["mask"] = x["mask"].astype(mask_type)
    out, _ = WORDS.apply(*WORDS.init(KEY, x), x, 0, 1)
    table, ids = np.asarray(TABLE.vectors), np.asarray(x["ids"])
    for row, length in enumerate([3, 1, 8]):
        by_hand = table[ids[row, :length]].mean(axis=0)
        by_hand /= np.sqrt((by_hand**2).sum())
        np.testing.assert_allclose(out[row], by_hand, atol=1e-6)
    np.testing.assert_array_equal(out[3], 0.0)


def test_table_is_a_parameter_only_if_trained():
    x = sentences([3, 2], 4)
    params, state = WORDS.init(KEY, x)
    assert params[0] == {}
    assert state[0] == {}
    trained = Stack((text.TokenMean(TABLE, train_table=True),))
    params, state = trained.init(KEY, x)
    np.testing.assert_array_equal(params[0]["table"], TABLE.vectors)
    grad = jax.grad(lambda p: trained.apply(p, state, x)[0].sum())(params)
    touched = np.flatnonzero(np.asarray(grad[0]["table"]).any(axis=1))
    real = np.asarray(x["ids"])[np.asarray(x["mask"])]
    np.testing.assert_array_equal(touched, np.unique(real))


def test_word_mean_with_the_vectors_of_wordllama():
    pytest.importorskip("wordllama")
    safetensors = pytest.importorskip("safetensors.numpy")
    stack = backbones.make("word_mean", hidden=(20, 10), norm=False)
    encode = wordllama_encoder(16)
    x = encode(["a senate vote on the budget", "", "wedding dress ideas"])
    assert x["mask"].sum(axis=1)[1] == 0
    params, state = stack.init(KEY, jax.tree.map(jnp.asarray, x))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 257 * 20 + 21 * 10
    out, _ = stack.apply(params, state, jax.tree.map(jnp.asarray, x), 0, 1)
    path = extras.package_file("wordllama", text.WORDLLAMA_TABLE, "text")
    table = safetensors.load_file(path)["embedding.weight"].astype(np.float32)
    assert table.shape == (32_000, 256)
    by_hand = table[x["ids"][0][x["mask"][0]]].mean(axis=0)
    by_hand /= np.linalg.norm(by_hand)
    np.testing.assert_allclose(out[0], by_hand, atol=1e-5)
    np.testing.assert_array_equal(out[1], 0.0)
