r"""The paper's analysis (Sec. 4, App. B) as JAX functions.

Lemmas 1, 2 and 4 state that the loss of interpolated tasks equals, to second order, the
loss of the original tasks plus a regularizer. This package has each of these losses and
its second-order approximation. Arrays hold $I$ tasks of $N$ samples with features of
size $D$ and labels 0 or 1.

All three follow from one expansion. The score of a mixture is
$\tilde u = \lambda u + (1-\lambda) v$, with the sample's score $u$ and its partner's
score $v$, which has mean $\bar v$ and variance $\mathrm{Var}\,v$ over the random
partner. Since $\lambda$ and $v$ are independent, with
$\bar\lambda = \mathrm{E}\lambda$,

$$
\mathrm{E}\,\tilde u = m = \bar\lambda u + (1-\bar\lambda)\bar v, \qquad
\mathrm{Var}\,\tilde u = \mathrm{Var}(\lambda)\,(u-\bar v)^2
  + \mathrm{E}[(1-\lambda)^2]\,\mathrm{Var}\,v,
$$

$$
\mathrm{E}\,\ell(\tilde u) = \ell(m) + \tfrac12 \ell''(m)\,\mathrm{Var}\,\tilde u + R,
\qquad |R| \le \tfrac16 \max|\ell'''|\;\mathrm{E}|\tilde u - m|^3 .
$$

With centered features, as the paper assumes, $\bar v = 0$ and
$\mathrm{Var}\,v = \phi^\top\Sigma\phi$.

The approximations here differ from the paper's, which are in
`experiments/theory/printed.py`, in the following points:

* The proofs use the constant $c = \mathrm{E}[(1-\lambda)^2 / \lambda^2]$ in the
  regularizer. Under Beta($\alpha$, $\alpha$) it is infinite for $\alpha \le 2$, which
  includes every $\alpha$ in the paper. Under the distribution $D_\lambda$ of Lemmas 1
  and 4 it is infinite for $\alpha \le 1$, which includes all but the largest, 2, where
  it is 3. The correct constant is $\mathrm{E}[(1-\lambda)^2] / 2$ under the same
  distribution: for $\alpha = 2$, 0.15 under Beta(2, 2) and 0.1 under $D_\lambda$.
* The paper omits the term $\mathrm{Var}(\lambda)\,u^2 / 2$, from the variance of
  $\lambda$. If all tasks share one head, classes are balanced and scores are near 0,
  it has the form of the regularizer, and
  $c = (\mathrm{E}[(1-\lambda)^2] + \mathrm{Var}(\lambda)) / 2$. Otherwise no constant
  $c$ is correct.
* The paper evaluates $\psi = \ell''$ at $u$ instead of $m$.
* Lemmas 1 and 2 take the mean of $\lambda$ under $D_\lambda$, which results from
  swapping a pair whose *labels* are mixed as well. Non-label-sharing tasks do not mix
  labels, so $\lambda$ keeps its Beta($\alpha$, $\beta$) distribution.
* In Lemma 4 that swap also swaps the heads, so it requires one head for all tasks.
  (The proof's $D_\lambda$ repeats Beta($\alpha+1$, $\beta$); the main text is correct.)
* The loss $1 / (1 + e^z)$ printed in Lemma 2 does not depend on the label. Its second
  derivative $\psi(z) \tanh(z/2)$ changes sign and does not regularize. $\psi$ belongs
  to the logistic loss, which the logarithm in the previous line implies. Since the
  partner's prototypes are mixed too, $\Sigma$ is the second moment of
  $x - (c_1 + c_2) / 2$, not of $x$.
* The sum over tasks inside the regularizer is printed twice.

As in the paper, the head $\phi_i$ is treated as a constant, although it is adapted on
the interpolated support set.
"""

from mlti_jax.theory._expansion import logistic
from mlti_jax.theory._gradient_based import (
    label_sharing_approximation,
    label_sharing_loss,
    non_label_sharing_approximation,
    non_label_sharing_loss,
)
from mlti_jax.theory._law import beta_law, moments
from mlti_jax.theory._metric_based import protonet_approximation, protonet_loss
from mlti_jax.theory._partners import partner_weights
from mlti_jax.theory._total_variance import covariances

__all__ = [
    "beta_law",
    "covariances",
    "label_sharing_approximation",
    "label_sharing_loss",
    "logistic",
    "moments",
    "non_label_sharing_approximation",
    "non_label_sharing_loss",
    "partner_weights",
    "protonet_approximation",
    "protonet_loss",
]
