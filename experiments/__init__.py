"""Commands that run from a clone: training, prediction, tables, figures, benchmarks."""

import mlti_jax as mlti_jax  # first: it reports Ctrl-C during slow imports
