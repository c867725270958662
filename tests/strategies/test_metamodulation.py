"""MetaModulation, compared with NumPy."""

# ruff: noqa: F811  (fixtures are imported, and named again as arguments)

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, interpolation, learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.strategies import Strategy, chain
from mlti_jax.strategies._metamodulation import modulate
from tests.support.regulariser_cases import start, tasks  # noqa: F401
from tests.support.tasks import make_task, objective, stack_tasks, take, task_loss

KEY = jax.random.key(0)
LS = {"setting": "non_label_sharing"}


@pytest.fixture(scope="module")
def protonet():
    return learners.protonet(backbones.mlp((6, 7)), 3)


def perturbed(variables, seed=0, scale=0.3):
    """Variables whose modulating networks are not at their start."""
    rng = np.random.default_rng(seed)
    own = jax.tree.map(
        lambda leaf: jnp.asarray(
            leaf + scale * rng.normal(size=leaf.shape), jnp.float32
        ),
        variables.strategy,
    )
    return variables.replace(strategy=own)


# --------------------------------------------------------------------- in NumPy


def batch_norm(a, scale, offset):
    return (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-5) * scale + offset


def block(h, params, change=None):
    """A fully connected block, the change one after the other: offsets, scales."""
    offset, scale = params["norm"]["offset"], params["norm"]["scale"]
    if change is not None:
        offset, scale = offset + change[: len(offset)], scale + change[len(offset) :]
    out = batch_norm(h @ params["kernel"], scale, offset)
    return np.where(out > 0, out, 0.01 * out)


def changes_of(model, networks, partner, key, samples):
    """Changes of each layer, and the KL divergence, which is summed over layers."""
    h, changes, divergence = partner, [], 0.0
    for layer, (params, network) in enumerate(zip(model, networks, strict=True)):
        h = block(h, params)
        z = h.mean(axis=0)
        hidden = z @ network["hidden_kernel"] + network["hidden_bias"]
        hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
        both = hidden @ network["kernel"] + network["bias"]
        mean, log_variance = both[: len(both) // 2], both[len(both) // 2 :]
        noise_key = jax.random.fold_in(jax.random.fold_in(key, 101), layer)
        noise = np.asarray(jax.random.normal(noise_key, mean.shape))
        changes.append(mean + np.exp(log_variance / 2) / np.sqrt(samples) * noise)
        variance = np.exp(log_variance)
        divergence += np.sum(variance + mean**2 - 1 - log_variance) / 2
    return changes, divergence


def modulated_loss(model, task, changes):
    """The loss of ProtoNet with the changed network, support and query as one batch."""
    h = np.concatenate([task.support.x, task.query.x])
    for params, change in zip(model, changes, strict=True):
        h = block(h, params, change)
    support, query = h[: len(task.support.y)], h[len(task.support.y) :]
    prototypes = np.stack([support[task.support.y[:, c] > 0].mean(0) for c in range(3)])
    logits = -((query[:, None] - prototypes[None]) ** 2).sum(-1)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -(log_p * task.query.y).sum(1).mean()


def test_objective_of_modulated_tasks_equals_a_loop(protonet, tasks):
    strategy = strategies.metamodulation(**LS, mixed_share=0.0, kl_weight=0.02)
    variables = perturbed(start(protonet, strategy, tasks.support.x[0]))
    loss, aux = objective(protonet, strategy, variables, tasks)
    assert aux.metric.shape == (4, 1)
    model, networks = jax.device_get((variables.params["model"], variables.strategy))
    _, _, key_transform, key_loss, _ = jax.random.split(KEY, 5)
    key_partners, _ = jax.random.split(key_transform)
    partners = interpolation.sample_partners(key_partners, tasks.domain)
    losses, divergences = [], []
    for i, key in enumerate(jax.random.split(key_loss, 4)):
        task, partner = jax.device_get((take(tasks, i), take(tasks, int(partners[i]))))
        changes, divergence = changes_of(
            model, networks, partner.support.x, key, samples=100
        )
        losses.append(modulated_loss(model, task, changes))
        divergences.append(divergence)
    assert min(divergences) > 0.1
    expected = np.mean(losses) + 0.02 * np.mean(divergences)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    vanilla, _ = objective(protonet, strategies.vanilla(), variables, tasks)
    assert abs(loss - vanilla) > 1e-3


def test_half_of_the_tasks_are_mixed(protonet):
    tasks = stack_tasks([make_task(s, shape=(8, 8, 1)) for s in range(4)])
    strategy = strategies.metamodulation(**LS, method="cutmix", mixed_share=0.5)
    transform = jax.jit(strategy.transform, static_argnums=2)
    strengths = []
    for seed in range(30):
        key = jax.random.key(seed)
        new = transform(tasks, key, 4)
        key_partners, key_tasks = jax.random.split(key)
        partners = interpolation.sample_partners(key_partners, tasks.domain)
        chex.assert_trees_all_equal(new.support.y[:, 0], tasks.support.y)
        for i, own in enumerate(jax.random.split(key_tasks, 4)):
            j = int(partners[i])
            got = take(take(new, i), 0)
            chex.assert_trees_all_equal(got.partner, take(tasks.support, j))
            strengths.append(float(got.strength))
            if strengths[-1]:
                chex.assert_trees_all_equal(got.query, take(tasks.query, i))
            elif seed < 3:
                _, key_lambda, key_mix = jax.random.split(own, 3)
                lam = interpolation.sample_lambda(key_lambda, 2.0)
                mixed = interpolation.non_label_sharing(
                    key_mix, take(tasks, i), take(tasks, j), lam, interpolation.cutmix
                )
                chex.assert_trees_all_close(got.query, mixed.query, atol=1e-6)
    assert set(strengths) == {0.0, 1.0}
    np.testing.assert_allclose(np.mean(strengths), 0.5, atol=0.15)


def test_a_mixed_task_is_not_modulated(protonet, tasks):
    strategy = strategies.metamodulation(**LS)
    variables = perturbed(start(protonet, strategy, tasks.support.x[0]))
    task = take(tasks, 0)
    changed, divergence = modulate(
        protonet, variables, task.support, TaskContext(KEY, True), strength=0.0
    )
    chex.assert_trees_all_equal(changed.params, variables.params)
    assert divergence == 0


def test_at_the_start_the_changes_are_those_of_the_prior(protonet, tasks):
    strategy = strategies.metamodulation(**LS)
    variables = start(protonet, strategy, tasks.support.x[0])

    def changed(key, samples):
        new, divergence = modulate(
            protonet,
            variables,
            take(tasks, 0).support,
            TaskContext(key, True),
            1.0,
            samples,
        )
        return new.params["model"][0]["norm"]["scale"], divergence

    keys = jax.random.split(KEY, 2000)
    for samples in (1, 100):
        scales, divergence = jax.jit(jax.vmap(lambda key: changed(key, samples)))(keys)  # noqa: B023
        np.testing.assert_allclose(scales.mean(), 1.0, atol=0.05)
        np.testing.assert_allclose(scales.std(), samples**-0.5, rtol=0.05)
        np.testing.assert_allclose(divergence, 0.0, atol=1e-6)


def test_the_loss_of_unchanged_tasks_is_added(protonet, tasks):
    alone = strategies.metamodulation(**LS)
    both = strategies.metamodulation(**LS, plain_weight=0.7)
    variables = perturbed(start(protonet, alone, tasks.support.x[0]))
    loss, _ = objective(protonet, alone, variables, tasks)
    with_plain, aux = objective(protonet, both, variables, tasks)
    plain = variables.replace(strategy=())
    losses = [
        task_loss(protonet, plain, take(tasks, i), KEY, 0, True) for i in range(4)
    ]
    added = 0.7 * np.mean([float(own) for own, _ in losses])
    np.testing.assert_allclose(with_plain, loss + added, rtol=1e-4)
    # Running averages are those of unchanged tasks.
    mean_state = jax.tree.map(lambda *s: np.mean(s, 0), *[a.state for _, a in losses])
    chex.assert_trees_all_close(aux.state, mean_state, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_gradients_of_the_networks_equal_differences(tasks, name):
    learner = learners.make(name, backbones.mlp((6, 7)), 3)
    strategy = strategies.metamodulation(**LS, kl_weight=0.1, mixed_share=0.3)
    variables = perturbed(start(learner, strategy, tasks.support.x[0]))
    rng = np.random.default_rng(1)
    direction = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32),
        variables.strategy,
    )

    def along(t):
        own = jax.tree.map(lambda a, b: a + t * b, variables.strategy, direction)
        changed = variables.replace(strategy=own)
        return objective(learner, strategy, changed, tasks)[0]

    step = 2e-3
    slope = jax.jit(jax.grad(along))(0.0)
    difference = (along(step) - along(-step)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=3e-2, atol=1e-3)


@pytest.mark.slow
def test_images_of_a_convolution(tasks):
    learner = learners.protonet(backbones.conv4(4, blocks=2), 3)
    images = stack_tasks([make_task(s, shape=(8, 8, 2)) for s in range(4)])
    strategy = chain(
        strategies.metamodulation(**LS, method="cutmix"), strategies.views()
    )
    variables = start(learner, strategy, images.support.x[0])
    value = jax.jit(
        jax.value_and_grad(
            lambda own: objective(
                learner, strategy, variables.replace(strategy=own), images
            )[0]
        )
    )
    loss, grads = value(variables.strategy)
    assert np.isfinite(loss)
    for layer in grads[0]:
        assert np.abs(layer["kernel"]).max() > 0


def test_padding_in_the_partner_does_not_count(protonet, tasks):
    strategy = strategies.metamodulation(**LS)
    variables = perturbed(start(protonet, strategy, tasks.support.x[0]))
    support = take(tasks, 0).support
    size = support.y.shape[0]
    padded = support.replace(
        x=jnp.concatenate([support.x, 100 * jnp.ones((3, 5))]),
        y=jnp.concatenate([support.y, jnp.zeros((3, 3))]),
        weight=jnp.array([1.0] * size + [0.0] * 3),
    )
    of = [
        modulate(protonet, variables, batch, TaskContext(KEY, True))
        for batch in (support, padded)
    ]
    chex.assert_trees_all_close(*of, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_weight": -1.0}, "metamodulation.kl_weight must be finite"),
        ({"plain_weight": float("inf")}, "metamodulation.plain_weight must be"),
        ({"mixed_share": 1.0}, "to mix all tasks, use the strategy mlti"),
        ({"samples": 0}, "samples is 0"),
        ({"method": "blend"}, "mixing method"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        strategies.metamodulation(**{**LS, **options})


def test_networks_without_batch_norm_are_refused(tasks):
    network = backbones.wrap([lambda x: x + 1.0])
    learner = learners.protonet(network, 3)
    with pytest.raises(InputError, match="this network has none"):
        strategies.init_variables(
            learner, strategies.metamodulation(**LS), KEY, tasks.support.x[0]
        )


def test_two_that_replace_the_loss_are_refused():
    own = Strategy("own", loss=lambda *arguments: None)
    with pytest.raises(InputError, match="both replace the loss of a task"):
        chain(own, own._replace(name="other"))
