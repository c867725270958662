"""`mlti_jax.select`: choose a method by cross-validation over tasks."""
