r"""The paper's analysis (Sec. 4, App. B), as functions to be run and checked.

Lemmas 1, 2 and 4 say that the loss of interpolated tasks is, to second order, the loss
of the tasks themselves and a regulariser. Here is each of these losses whole, its
second-order approximation, and the approximation that the paper prints. Arrays hold
`I` tasks of `N` samples with features of size `D`, and labels 0 or 1.

All three rest on one expansion (`expansion.py`). The score of a mixture is
:math:`\tilde u = \lambda u + (1-\lambda) v`, with the sample's own score u and its
partner's v, drawn with mean :math:`\bar v` and variance :math:`\mathrm{Var}\,v`. As
:math:`\lambda` and v are independent, with :math:`\bar\lambda = \mathrm{E}\lambda`,

.. math::
  \mathrm{E}\,\tilde u = m = \bar\lambda u + (1-\bar\lambda)\bar v, \qquad
  \mathrm{Var}\,\tilde u = \mathrm{Var}(\lambda)\,(u-\bar v)^2
    + \mathrm{E}[(1-\lambda)^2]\,\mathrm{Var}\,v, \\
  \mathrm{E}\,\ell(\tilde u) = \ell(m) + \tfrac12 \ell''(m)\,\mathrm{Var}\,\tilde u
    + R, \qquad |R| \le \tfrac16 \max|\ell'''|\;\mathrm{E}|\tilde u - m|^3 .

With features that are centred, as the paper has them, :math:`\bar v = 0` and
:math:`\mathrm{Var}\,v = \phi^\top\Sigma\phi`.

Where the paper departs from this, and what is right:

* The regulariser's constant is c = E[(1-lambda)^2 / lambda^2] in the proofs. It is
  infinite for alpha <= 2 under Beta(alpha, alpha), so for all alphas that the paper
  uses, and for alpha <= 1 under the law D_lambda of Lemmas 1 and 4, so for all but its
  largest, 2, where it is 3. Right is E[(1-lambda)^2] / 2 under the same law: with
  alpha = 2, 0.15 under Beta(2, 2) and 0.1 under D_lambda.
* The term Var(lambda) u^2 / 2, of lambda's own spread, is missing. With one head for
  all tasks and balanced classes, and scores near 0, it has the form of the other and
  c = (E[(1-lambda)^2] + Var(lambda)) / 2; otherwise no constant c is right.
* The factor psi stands at u, where it has to stand at m.
* The mean of lambda in Lemmas 1 and 2 is taken under D_lambda, which comes from
  exchanging a pair whose *labels* are mixed too. Non-label-sharing tasks mix no labels:
  lambda keeps its Beta(alpha, beta).
* In Lemma 4 that exchange also exchanges the heads: it needs one head for all tasks.
  (The proof's D_lambda repeats Beta(alpha+1, beta); the main text has it right.)
* In Lemma 2 the printed loss 1 / (1 + e^z) does not know the labels, and its second
  derivative is psi(z) tanh(z/2), which has both signs and regularises nothing. psi
  belongs to the logistic loss, which the logarithm of the line before asks for.
  The partner's prototypes are mixed in as well, so that Sigma is the second moment of
  x - (c_1 + c_2) / 2 and not of x.
* The sum over tasks inside the regulariser is printed twice, once too often.

In all of this the head phi_i is a constant, as in the paper: that it is adapted on the
interpolated support set is left out.
"""

from mlti_jax.theory._expansion import logistic, psi
from mlti_jax.theory._gradient_based import (
    exchanged_approximation,
    exchanged_loss,
    label_sharing_approximation,
    label_sharing_loss,
    non_label_sharing_approximation,
    non_label_sharing_loss,
    printed_label_sharing,
    printed_non_label_sharing,
)
from mlti_jax.theory._law import (
    Law,
    Moments,
    PrintedConstants,
    beta_law,
    exchanged,
    moments,
    printed_constants,
)
from mlti_jax.theory._metric_based import (
    between_prototypes,
    bounded,
    printed_protonet,
    protonet_approximation,
    protonet_loss,
)
from mlti_jax.theory._partners import partner_weights
from mlti_jax.theory._total_variance import Covariances, covariances

__all__ = [
    "Covariances",
    "Law",
    "Moments",
    "PrintedConstants",
    "beta_law",
    "between_prototypes",
    "bounded",
    "covariances",
    "exchanged",
    "exchanged_approximation",
    "exchanged_loss",
    "label_sharing_approximation",
    "label_sharing_loss",
    "logistic",
    "moments",
    "non_label_sharing_approximation",
    "non_label_sharing_loss",
    "partner_weights",
    "printed_constants",
    "printed_label_sharing",
    "printed_non_label_sharing",
    "printed_protonet",
    "protonet_approximation",
    "protonet_loss",
    "psi",
]
