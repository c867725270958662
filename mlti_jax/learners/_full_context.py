"""Full-context embeddings of Matching Networks (Vinyals et al. 2016, appendix A).

Embeddings depend on the whole support set: support samples pass through an LSTM that
runs over the set in both directions (A.2), queries through an LSTM that attends to the
set repeatedly (A.1).
"""

from __future__ import annotations

import dataclasses

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from mlti_jax.types import Array, Batch, PyTree

Pair = tuple[Array, Array]  # output and cell of an LSTM, or gates and counts


def init_lstm(key: Array, size: int, recurrent: int) -> PyTree:
    """Initialize an LSTM with input and output size D.

    Args:
      key: PRNG key.
      size: D.
      recurrent: R, the size of the recurrent input: D, or more if something else is
        concatenated to the output.

    Returns:
      `input [D, 4D]` and `recurrent [R, 4D]`, random with variance 1 / D and 1 / R, and
      `bias [4D]`, zeros; the four parts are the gates in the order of `lstm_step`.
    """
    key_input, key_recurrent = jax.random.split(key)
    initial = nn.initializers.lecun_normal()
    return {
        "input": initial(key_input, (size, 4 * size)),
        "recurrent": initial(key_recurrent, (recurrent, 4 * size)),
        "bias": jnp.zeros(4 * size),
    }


def lstm_step(gates: Array, cell: Array) -> tuple[Array, Array]:
    r"""Compute one LSTM step from the linear part of its gates.

    $$c' = \sigma(f) \circ c + \sigma(i) \circ \tanh(g), \quad
      h' = \sigma(o) \circ \tanh(c')$$

    Args:
      gates: `[..., 4D]`, the parts i, f, g and o.
      cell: c, `[..., D]`.

    Returns:
      `(h', c')`, each `[..., D]`.
    """
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def run_lstm(params: PyTree, x: Array, counts: Array, reverse: bool = False) -> Array:
    """Run an LSTM over `x [N, D]` from a zero state; return outputs `[N, D]`.

    Args:
      params: from `init_lstm`, with R = D.
      x: `[N, D]`.
      counts: `[N]` of bool; samples where it is False leave the state unchanged.
      reverse: whether to run from the last sample to the first.
    """
    inputs = x @ params["input"] + params["bias"]

    def step(state: Pair, sample: Pair) -> tuple[Pair, Array]:
        gates, counts = sample
        new = lstm_step(gates + state[0] @ params["recurrent"], state[1])
        state = jax.tree.map(lambda new, old: jnp.where(counts, new, old), new, state)
        return state, state[0]

    zeros = jnp.zeros(x.shape[1], inputs.dtype)
    return jax.lax.scan(step, (zeros, zeros), (inputs, counts), reverse=reverse)[1]


@dataclasses.dataclass(frozen=True)
class FullContext:
    r"""Embeds support and query given the support set S.

    Support samples, with one LSTM per direction (A.2):

    $$g(x_i, S) = \overrightarrow{h}_i + \overleftarrow{h}_i + g'(x_i)$$

    A query, in K steps from $h_0 = f'(x)$ and $c_0 = 0$ (A.1, Eqs. 3 to 6 of the arXiv
    version, which does not specify the initial state):

    $$\begin{aligned}
      \hat{h}_k, c_k &= \mathrm{LSTM}(f'(x), [h_{k-1}, r_{k-1}], c_{k-1}) \\
      h_k &= \hat{h}_k + f'(x) \\
      r_{k-1} &= \sum_i a_i\, g(x_i, S), \quad
      a = \mathrm{softmax}_i(h_{k-1}^\top g(x_i, S))
    \end{aligned}$$

    and $f(x, S) = h_K$. Here f' = g', the network below. The three LSTMs have
    $28 D^2 + 12 D$ parameters for embeddings of length D.

    As in the original, the order of the support samples matters, because an LSTM runs
    over them. `sample_task` lists them class by class, so on label-sharing data the
    position of a sample reveals its class.

    Attributes:
      steps: K.
    """

    steps: int

    def init(self, key: Array, size: int) -> PyTree:
        """Initialize the three LSTMs for embeddings of length `size`."""
        forward, backward, attention = jax.random.split(key, 3)
        return {
            "forward": init_lstm(forward, size, size),
            "backward": init_lstm(backward, size, size),
            "attention": init_lstm(attention, size, 2 * size),
        }

    def apply(
        self, params: PyTree, support: Batch, query_h: Array
    ) -> tuple[Array, Array]:
        """Compute g(x_i, S) and f(x, S) from the embeddings g'(x_i) and f'(x).

        Args:
          params: from `init`.
          support: the support set with embeddings `[N, D]` as x; samples of weight 0
            have no effect.
          query_h: `[N_q, D]`.

        Returns:
          Embeddings of the support set `[N, D]` and of the queries `[N_q, D]`.
        """
        chex.assert_rank([support.x, query_h], 2)
        if support.weight is None:
            counts = jnp.ones(support.x.shape[0], bool)
        else:
            counts = support.weight > 0
        forward = run_lstm(params["forward"], support.x, counts)
        backward = run_lstm(params["backward"], support.x, counts, reverse=True)
        support_h = forward + backward + support.x

        lstm = params["attention"]
        inputs = query_h @ lstm["input"] + lstm["bias"]

        def step(state: Pair, _: None) -> tuple[Pair, None]:
            h, cell = state
            scores = jnp.where(counts, h @ support_h.T, -jnp.inf)
            read = jax.nn.softmax(scores) @ support_h
            gates = inputs + jnp.concatenate([h, read], axis=1) @ lstm["recurrent"]
            h, cell = lstm_step(gates, cell)
            return (h + query_h, cell), None

        start = (query_h.astype(inputs.dtype), jnp.zeros(query_h.shape, inputs.dtype))
        (query_h, _), _ = jax.lax.scan(step, start, length=self.steps)
        return support_h, query_h
