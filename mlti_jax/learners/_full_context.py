"""Full-context embeddings of Matching Networks (Vinyals et al. 2016, appendix A).

A sample is embedded with the whole support set in view: support samples by an LSTM
that runs over the set in both directions (A.2), queries by an LSTM that looks at the
set again and again (A.1).
"""

from __future__ import annotations

import dataclasses

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from mlti_jax.types import Array, Batch, PyTree


def init_lstm(key: Array, size: int, recurrent: int) -> PyTree:
    """Parameters of an LSTM with input and output of length `size`, D.

    Args:
      key: random key.
      size: D.
      recurrent: R, the length of what comes back from the last step: D, or more
        where something else is joined to the output.

    Returns:
      `input [D, 4D]` and `recurrent [R, 4D]`, random with variance 1 / D and 1 / R, and
      `bias [4D]`, zeros; the four parts are the gates of `lstm_step`, in their order.
    """
    key_input, key_recurrent = jax.random.split(key)
    initial = nn.initializers.lecun_normal()
    return {
        "input": initial(key_input, (size, 4 * size)),
        "recurrent": initial(key_recurrent, (recurrent, 4 * size)),
        "bias": jnp.zeros(4 * size),
    }


def lstm_step(gates: Array, cell: Array) -> tuple[Array, Array]:
    r"""One step of an LSTM, from the linear part of its gates on.

    .. math:: c' = \sigma(f) \circ c + \sigma(i) \circ \tanh(g), \quad
              h' = \sigma(o) \circ \tanh(c')

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
    """Outputs `[N, D]` of an LSTM that runs over `x [N, D]` from a state of zeros.

    Args:
      params: of `init_lstm`, with R = D.
      x: `[N, D]`.
      counts: `[N]` of bool; the state passes unchanged where it is False.
      reverse: whether to run from the last sample to the first.
    """
    inputs = x @ params["input"] + params["bias"]

    def step(state, sample):
        gates, counts = sample
        new = lstm_step(gates + state[0] @ params["recurrent"], state[1])
        state = jax.tree.map(lambda new, old: jnp.where(counts, new, old), new, state)
        return state, state[0]

    zeros = jnp.zeros(x.shape[1], inputs.dtype)
    return jax.lax.scan(step, (zeros, zeros), (inputs, counts), reverse=reverse)[1]


@dataclasses.dataclass(frozen=True)
class FullContext:
    r"""Embeds support and query given the support set S.

    Support samples, with an LSTM in each direction (A.2):

    .. math:: g(x_i, S) = \overrightarrow{h}_i + \overleftarrow{h}_i + g'(x_i)

    A query, in K steps from :math:`h_0 = f'(x)` and :math:`c_0 = 0` (A.1, Eq. 3 to 6
    of the arXiv version, which leaves the first state open):

    .. math::
      \hat{h}_k, c_k &= \mathrm{LSTM}(f'(x), [h_{k-1}, r_{k-1}], c_{k-1}) \\
      h_k &= \hat{h}_k + f'(x) \\
      r_{k-1} &= \sum_i a_i\, g(x_i, S), \quad
      a = \mathrm{softmax}_i(h_{k-1}^\top g(x_i, S))

    and :math:`f(x, S) = h_K`. Here f' = g', the network below. The three LSTMs have
    :math:`28 D^2 + 12 D` parameters for embeddings of length D.

    The order of the support samples matters, as in the original, since an LSTM runs
    over them. `sample_task` lists them class by class: where labels mean the same in
    every task, a sample's place then tells its class.

    Attributes:
      steps: K.
    """

    steps: int

    def init(self, key: Array, size: int) -> PyTree:
        """Parameters of the three LSTMs, for embeddings of length `size`."""
        forward, backward, attention = jax.random.split(key, 3)
        return {
            "forward": init_lstm(forward, size, size),
            "backward": init_lstm(backward, size, size),
            "attention": init_lstm(attention, size, 2 * size),
        }

    def apply(
        self, params: PyTree, support: Batch, query_h: Array
    ) -> tuple[Array, Array]:
        """From embeddings g'(x_i) and f'(x) to g(x_i, S) and f(x, S).

        Args:
          params: of `init`.
          support: its x embedded as `[N, D]`. Samples of weight 0 change nothing.
          query_h: `[N_q, D]`.

        Returns:
          Embeddings of the support `[N, D]` and of the queries `[N_q, D]`.
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

        def step(state, _):
            h, cell = state
            scores = jnp.where(counts, h @ support_h.T, -jnp.inf)
            read = jax.nn.softmax(scores) @ support_h
            gates = inputs + jnp.concatenate([h, read], axis=1) @ lstm["recurrent"]
            h, cell = lstm_step(gates, cell)
            return (h + query_h, cell), None

        start = (query_h.astype(inputs.dtype), jnp.zeros(query_h.shape, inputs.dtype))
        (query_h, _), _ = jax.lax.scan(step, start, length=self.steps)
        return support_h, query_h
