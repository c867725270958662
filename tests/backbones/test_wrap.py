"""Wrapped networks: modules, functions and pairs, against computations by hand."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from experiments.benchmark.own_network import OwnBlock, OwnConv4
from mlti_jax import backbones, data, learners, strategies
from mlti_jax.backbones import Context, wrap
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext, Variables
from mlti_jax.strategies._objective import check_layers
from mlti_jax.training import Episode, init_state, make_run_steps
from mlti_jax.training._checkpoints import leaves_by_name, tree_from_leaves
from tests.support.tasks import KEY, make_task

X = np.random.default_rng(0).normal(1.0, 2.0, (6, 3)).astype(np.float32)
TRAIN, BATCH = Context(KEY, train=True), Context()
RUNNING = Context(batch_statistics=False)


class Linen(nn.Module):
    """Linear map, batch-norm, dropout, all switched by `train`."""

    rate: float = 0.0

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(4, name="dense")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        return nn.Dropout(self.rate, deterministic=not train)(x)


class Nnx(nnx.Module):
    """The same in NNX."""

    def __init__(self, rate: float = 0.0, *, rngs: nnx.Rngs):
        self.dense = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.dense(x)))


class NnxWithArgument(Nnx):
    """The same, switched by an argument."""

    def __call__(self, x, train: bool):
        x = self.norm(self.dense(x), use_running_average=not train)
        return self.dropout(x, deterministic=not train)


def init_pair(key, x):
    norm = {"scale": jnp.ones(4), "bias": jnp.zeros(4)}
    dense = {"kernel": jax.random.normal(key, (x.shape[1], 4)), "bias": jnp.zeros(4)}
    params = {"dense": dense, "norm": norm}
    return params, {"norm": {"mean": jnp.zeros(4), "var": jnp.ones(4)}}


def apply_pair(params, state, key, x, rate=0.0, *, train):
    x = x @ params["dense"]["kernel"] + params["dense"]["bias"]
    mean, var = state["norm"]["mean"], state["norm"]["var"]
    if train:
        mean, var = x.mean(0), x.var(0)
        new = {"mean": mean, "var": var}
        blend = lambda old, new: 0.9 * old + 0.1 * new  # noqa: E731
        state = {"norm": jax.tree.map(blend, state["norm"], new)}
    x = (x - mean) / jnp.sqrt(var + 1e-5) * params["norm"]["scale"]
    return x + params["norm"]["bias"], state


NETWORKS = {
    "linen": Linen(),
    "nnx": Nnx(rngs=nnx.Rngs(0)),
    "nnx_from_rngs": functools.partial(Nnx, 0.0),
    "nnx_with_argument": NnxWithArgument(rngs=nnx.Rngs(0)),
    "pair": (init_pair, apply_pair),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_batch_norm_by_hand(name):
    stack = wrap(NETWORKS[name])
    params, state = stack.init(KEY, X)
    dense = params[0]["dense"]
    h = X.astype(np.float64) @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])
    normalize = lambda mean, var: (h - mean) / np.sqrt(var + 1e-5)  # noqa: E731
    by_batch = normalize(h.mean(0), h.var(0))
    out, new_state = stack.apply(params, state, X, context=TRAIN)
    np.testing.assert_allclose(out, by_batch, atol=1e-4)
    norm = new_state[0]["norm"]
    mean, var = 0.1 * h.mean(0), 0.9 + 0.1 * h.var(0)
    np.testing.assert_allclose(norm["mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm["var"], var, rtol=1e-4)
    out, unchanged = stack.apply(params, new_state, X, context=BATCH)
    np.testing.assert_allclose(out, by_batch, atol=1e-4)
    chex.assert_trees_all_equal(unchanged, new_state)
    out, unchanged = stack.apply(params, new_state, X, context=RUNNING)
    np.testing.assert_allclose(out, normalize(mean, var), atol=1e-4)
    chex.assert_trees_all_equal(unchanged, new_state)


@pytest.mark.parametrize(
    "network",
    [Linen(0.5), Nnx(0.5, rngs=nnx.Rngs(0)), NnxWithArgument(0.5, rngs=nnx.Rngs(0))],
    ids=["linen", "nnx", "nnx_with_argument"],
)
def test_dropout_in_training_only_and_by_key(network):
    stack = wrap(network)
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    params, state = stack.init(KEY, x)

    def run(context):
        return np.asarray(stack.apply(params, state, x, context=context)[0])

    noisy, plain = run(TRAIN), run(BATCH)
    np.testing.assert_array_equal(run(TRAIN), noisy)
    assert (run(TRAIN.replace(key=jax.random.key(9))) != noisy).any()
    kept = noisy != 0
    np.testing.assert_allclose(kept.mean(), 0.5, atol=0.05)
    np.testing.assert_allclose(noisy[kept], 2 * plain[kept], rtol=1e-4)
    assert (plain != 0).all()  # also with batch statistics
    assert (run(RUNNING) != 0).all()


def test_a_pair_that_cannot_turn_its_noise_off_is_an_error():
    def apply(params, state, key, x, train):
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(train & ~keep, 0.0, x), state

    stack = wrap((lambda key, x: ({}, {"mean": x.mean(axis=0)}), apply))
    with pytest.raises(InputError, match="add an argument `deterministic`, or use"):
        stack.init(KEY, X)


def test_padding_does_not_enter_the_statistics_of_linen():
    stack = wrap(Linen())
    params, state = stack.init(KEY, X)
    alone = stack.apply(params, state, X, context=TRAIN)
    padded = np.concatenate([X, 100 + X[:2]])
    weight = jnp.array([1.0] * 6 + [0.0] * 2)
    out = stack.apply(params, state, padded, context=TRAIN.replace(weight=weight))
    np.testing.assert_allclose(out[0][:6], alone[0], atol=1e-4)
    chex.assert_trees_all_close(out[1], alone[1], atol=1e-5)


@pytest.mark.parametrize("network", [NETWORKS["nnx"], NETWORKS["pair"], OwnBlock(2)])
def test_padding_elsewhere_is_an_error_only_with_batch_statistics(network):
    stack = wrap(network)
    x = np.ones((4, 4, 4, 1), np.float32) if isinstance(network, OwnBlock) else X[:4]
    params, state = stack.init(KEY, x)
    weight = jnp.array([1.0, 1.0, 1.0, 0.0])
    with pytest.raises(InputError, match="norm='running'"):
        stack.apply(params, state, x, context=BATCH.replace(weight=weight))
    stack.apply(params, state, x, context=RUNNING.replace(weight=weight))


def test_pair_gets_its_key_in_training():
    def apply(params, rng, x):
        return params * x + jax.random.normal(rng, x.shape)

    stack = wrap((lambda key, x: jnp.float32(2), apply))
    params, state = stack.init(KEY, X)
    out, _ = stack.apply(params, state, X, context=TRAIN)
    noise = jax.random.normal(jax.random.fold_in(KEY, 0), X.shape)
    np.testing.assert_allclose(out, 2 * X + noise, rtol=1e-5)


def test_haiku_transform_is_a_pair():
    hk = pytest.importorskip("haiku")
    network = hk.transform(lambda x: hk.nets.MLP([5, 2])(x))
    stack = wrap(network)
    params, state = stack.init(KEY, X)
    expected = network.apply(params[0], None, X)
    np.testing.assert_allclose(stack.apply(params, state, X)[0], expected, rtol=1e-5)


def test_layers_of_a_sequence():
    double = lambda x: 2 * x  # noqa: E731
    assert wrap(double).init(KEY, X) == (({},), ({},))
    stack = wrap([nn.Dense(4), double, [nn.Dense(3, use_bias=False)]])
    params, state = stack.init(KEY, X)
    assert len(stack) == 3
    hidden, _ = stack.apply(params, state, X, 0, 2)
    first = params[0]
    by_hand = 2 * (X @ np.asarray(first["kernel"]) + np.asarray(first["bias"]))
    np.testing.assert_allclose(hidden, by_hand, rtol=1e-4, atol=1e-5)
    out, _ = stack.apply(params, state, hidden, 2)
    by_hand = by_hand @ np.asarray(params[2]["kernel"])
    np.testing.assert_allclose(out, by_hand, rtol=1e-4, atol=1e-5)


def test_equal_networks_are_equal_and_compile_once():
    values = Linen().init(KEY, X, train=False)
    traced = []

    @functools.partial(jax.jit, static_argnums=0)
    def run(stack, params, state):
        traced.append(stack)
        return stack.apply(params, state, X)[0]

    for make in (
        lambda: wrap(Linen()),
        lambda: wrap(Linen(), params=values, frozen=True),
        lambda: wrap([NETWORKS["nnx"], nn.relu, (init_pair, apply_pair)]),
    ):
        one, other = make(), make()
        assert one == other
        assert hash(one) == hash(other)
        if len(one) == 1:
            run(one, *one.init(KEY, X))
            run(other, *one.init(KEY, X))
            assert len(traced) == 1
            traced.clear()
    assert wrap(Linen()) != wrap(Linen(0.1))
    assert wrap(Linen()) != wrap(Linen(), frozen=True)


def test_bfloat16_computes_in_it_and_returns_float32():
    for name in NETWORKS:
        stack = wrap(NETWORKS[name])
        params, state = stack.init(KEY, X)
        exact, _ = stack.apply(params, state, X, context=TRAIN)
        out, new = stack.with_compute_dtype("bfloat16").apply(
            params, state, X, context=TRAIN
        )
        assert out.dtype == jnp.float32
        assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {jnp.dtype("float32")}
        error = np.abs(np.asarray(out - exact)).max()
        assert 1e-4 < error < 0.2


# ----------------------------------------------------------------- pretrained, frozen


def test_pretrained_parameters_are_where_training_starts():
    module = Linen()
    values = module.init(jax.random.key(5), X, train=False)
    values["batch_stats"]["norm"]["mean"] += 3.0
    params, state = wrap(module, params=values).init(KEY, X)
    chex.assert_trees_all_equal(params[0], values["params"])
    chex.assert_trees_all_equal(state[0], values["batch_stats"])
    params, state = wrap(module, params=values["params"]).init(KEY, X)
    chex.assert_trees_all_equal(params[0], values["params"])
    np.testing.assert_array_equal(state[0]["norm"]["mean"], 0)
    instance = NETWORKS["nnx"]
    params, _ = wrap(instance).init(KEY, X)
    np.testing.assert_array_equal(
        params[0]["dense"]["kernel"], instance.dense.kernel[...]
    )
    start = jax.tree.map(lambda leaf: leaf + 1, init_pair(KEY, X))
    params, state = wrap((init_pair, apply_pair), params=start).init(KEY, X)
    chex.assert_trees_all_equal((params[0], state[0]), start)


def test_params_that_do_not_fit():
    module = Linen()
    values = module.init(KEY, X, train=False)["params"]
    wider = {**values, "dense": {**values["dense"], "kernel": np.zeros((5, 4))}}
    for params, message in (
        (wider, r"dense/kernel of shape \(5, 4\); expected \(3, 4\)"),
        ({"dense": values["dense"]}, "lack norm/bias, norm/scale"),
        ({**values, "more": {"w": 1.0}}, "have the unexpected more/w"),
    ):
        with pytest.raises(InputError, match=message):
            wrap(module, params=params).init(KEY, X)


@pytest.mark.parametrize("learner", ["maml", "protonet"])
def test_training_with_weight_decay_leaves_frozen_layers_as_they_are(learner):
    rng = np.random.default_rng(0)
    pool = data.ClassPool.from_arrays(
        rng.normal(size=(60, 3)).astype(np.float32), np.repeat(np.arange(6), 10)
    )
    stack = wrap([wrap(Linen(0.3), frozen=True), Linen(0.3)])
    made = learners.make(learner, stack, 3)
    strategy = strategies.mlti(setting="non_label_sharing", layers=(0, 1))
    optimizer = optax.adamw(0.01, weight_decay=0.1)
    start = init_state(made, strategy, optimizer, KEY, pool.x[:2])
    saved = leaves_by_name(jax.tree.map(np.array, start.variables))
    run = make_run_steps(made, strategy, optimizer, Episode(3, 2, 2), 3)
    state, _ = run(start, pool, KEY, 5)
    after = leaves_by_name(state.variables)
    assert set(after) == set(saved)
    frozen = [name for name in saved if name.startswith("state.0")]
    assert len(frozen) == 6
    for name, value in after.items():
        same = (np.asarray(value) == saved[name]).all()
        assert same == (name in frozen), name
    # The arrays of a saved model belong to a model of the same network.
    template = jax.eval_shape(lambda: made.init(KEY, X))
    restored = tree_from_leaves(after, template, "here", "none")
    chex.assert_trees_all_equal(restored, state.variables)


def test_a_frozen_network_runs_as_at_test_time():
    stack = wrap(Linen(0.5), frozen=True)
    params, state = stack.init(KEY, X)
    assert params == ({},)
    fixed, _ = stack.apply(params, state, X, context=RUNNING)
    out, new = stack.apply(params, state, X, context=TRAIN)
    np.testing.assert_array_equal(out, fixed)
    chex.assert_trees_all_equal(new, state)


# --------------------------------------------------------- the built-in Conv4, wrapped


def built_in(params, state, blocks):
    """Variables of the built-in network from those of `OwnConv4`."""
    names = [f"OwnBlock_{i}" for i in range(blocks)]
    model = tuple(
        {
            "kernel": params[0][n]["kernel"],
            "norm": {k: params[0][n][k] for k in ("scale", "offset")},
        }
        for n in names
    )
    return (*model, *params[1:]), (*({"norm": state[0][n]} for n in names), *state[1:])


@pytest.mark.parametrize(
    ("name", "own", "theirs"),
    [
        ("protonet", {}, {}),
        ("maml", {"adapted": ("0/OwnBlock_1/*", "head/*")}, {}),
        ("maml", {"adapted": ("0/*", "head/*")}, {"adapted_layers": (0, 1, 2)}),
    ],
    ids=["protonet", "maml_last_block", "maml_all"],
)
def test_wrapped_conv4_has_the_meta_gradient_of_the_built_in(name, own, theirs):
    blocks = 2
    one = learners.make(name, wrap(OwnConv4(3, blocks)), 2, **own)
    other = learners.make(name, backbones.conv4(3, blocks), 2, **theirs)
    with jax.enable_x64(True):
        task = make_task(0, 2, 2, 3, (8, 8, 2))
        task = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), task)
        variables = one.init(KEY, task.support.x)
        rng = np.random.default_rng(1)
        draw = lambda a: jnp.asarray(0.5 * rng.normal(size=a.shape))  # noqa: E731
        params = jax.tree.map(draw, variables.params)  # scales of both signs
        state = jax.tree.map(lambda a: abs(draw(a)), variables.state)
        context = TaskContext(KEY, train=True)

        def gradient(learner, model, state):
            def loss(model):
                params = {"model": model}
                params |= {"rule": ()} if name == "maml" else {}
                loss, aux = learner.loss(Variables(params, state), task, context)
                return loss, aux.state

            return jax.value_and_grad(loss, has_aux=True)(model)

        (loss, new), grad = gradient(one, params["model"], state)
        got, got_state = built_in(grad, new, blocks)
        (expected_loss, new), expected = gradient(
            other, *built_in(params["model"], state, blocks)
        )
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-12)
        for a, b in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
            assert np.abs(a - b).max() <= 1e-10 * np.abs(b).max()
        if own.get("adapted") == ("0/OwnBlock_1/*", "head/*"):
            # Shared layers see both sets; one module runs on the query set at the end.
            got_state, new = got_state[1:], new[1:]
        chex.assert_trees_all_close(got_state, new, rtol=1e-10)


# ------------------------------------------------------------------------------ errors


class OtherCollection(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("cache", "last", jnp.zeros, (1,))
        return x


class OtherVariable(nnx.Module):
    def __init__(self):
        self.last = nnx.Cache(jnp.zeros(1))


class Held:
    """A function with arrays, as an Equinox module."""

    def __call__(self, x):
        return x


jax.tree_util.register_pytree_node(Held, lambda _: ((1.0,), None), lambda *_: Held())


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (3, {}, "of type int; expected a Flax module"),
        ("conv4", {}, "of type str; expected"),
        ([], {}, "empty sequence"),
        (Linen, {}, r"the class Linen; expected a module, such as Linen\("),
        (Held(), {}, "holds arrays, which would not be trained"),
        (OtherCollection(), {}, "collection 'cache'; only"),
        (nn.Sequential([nn.BatchNorm(True)]), {}, "accepts none of train, training"),
        (lambda x: (x, x), {}, "returns tuple; expected one array"),
        (lambda x: x[:3], {}, r"shape \(3, 3\) for 6 samples; expected \(6, ...\)"),
        (lambda x: x.sum(), {}, r"shape \(\) for 6 samples"),
        (lambda x: x > 0, {}, "array of bool; expected floating-point"),
        (nn.relu, {"params": {}}, "params is given for a function"),
        ([nn.relu], {"params": {}}, "params is given for several layers"),
        (NETWORKS["nnx"], {"params": {}}, "nnx.update"),
        (Linen(), {"params": 3}, "of type int; expected a dictionary"),
        (Linen(), {"frozen": 1}, "frozen is 1; expected True or False"),
        (
            (lambda key, x: (), lambda params, state, x: x),
            {},
            r"init must return \(params, state\)",
        ),
        (lambda rngs: 3, {}, "expected an nnx.Module"),
        (lambda rngs: OtherVariable(), {}, "variable last of type Cache"),
    ],
)
def test_networks_that_cannot_be_wrapped(network, options, message):
    with pytest.raises(InputError, match=message):
        wrap(network, **options).init(KEY, jnp.asarray(X))


def test_strategies_that_need_the_inside_of_a_network_say_so():
    learner = learners.maml(wrap(nn.Dense(4)), 2)
    with pytest.raises(InputError, match="wrap a sequence of its parts"):
        check_layers(learner, strategies.mlti(setting="label_sharing", layers=(1,)))
    with pytest.raises(InputError, match="metadropout needs .* wrapped module"):
        strategies.init_variables(learner, strategies.metadropout(), KEY, X)
