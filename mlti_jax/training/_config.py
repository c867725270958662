"""The fields of every config, and their defaults."""

from __future__ import annotations

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

# What the gradient-based learners have in common.
GRADIENT_BASED = {
    "inner_learning_rate": 0.01,
    "steps": 5,
    "eval_steps": 5,
    "second_order": True,
    "remat": False,
    "unroll": False,
    "norm": "batch",
}


def base_config() -> ConfigDict:
    """The fields of every config; the values are the paper's where it has one."""
    return ConfigDict(
        {
            "seed": 0,
            # Where compiled programs are kept: beside the work directory; a path; off.
            "compilation_cache": "beside",
            "dataset": {"name": ""},
            "backbone": {
                "name": "",
                "conv4": {"filters": 32, "blocks": 4},
                "resnet12": {
                    "filters": (64, 160, 320, 640),
                    "drop_rate": 0.0,  # of DropBlock
                    "block_size": 5,
                },
                "mlp": {"hidden": (500, 500), "slope": 0.01, "dropout": 0.0},
                "pose": {"width": 1.0},
                "albert": {"pretrained": placeholder(str), "pool": "first"},
                "word_mean": {
                    "hidden": (256,),
                    "slope": 0.01,
                    "dropout": 0.0,
                    "norm": True,
                    "train_table": False,
                },
            },
            "learner": {
                "name": "",
                "maml": {"adapted_layers": (-2, -1), **GRADIENT_BASED},
                "anil": {**GRADIENT_BASED},
                "metasgd": {"adapted_layers": (-2, -1), **GRADIENT_BASED},
                "meta_curvature": {"adapted_layers": (-2, -1), **GRADIENT_BASED},
                "protonet": {"norm": "running", "distance": "squared_euclidean"},
                "matchingnet": {
                    "norm": "running",
                    "distance": "cosine",
                    "scale": 1.0,
                    "full_context": False,
                    "context_steps": 5,
                },
                # Dhillon et al. (2019): Adam on the support set.
                "sl": {"learning_rate": 5e-5, "steps": 25, "norm": "running"},
                # Wang et al. (2021): logistic regression with C = strength.
                "mtl": {
                    "unit_features": True,
                    "strength": 3.0,
                    "steps": 200,  # of its solver
                    "norm": "running",
                },
            },
            "strategy": {
                "name": "",
                "mlti": {
                    "alpha": 2.0,  # Beta(alpha, alpha)
                    "alpha_intra": placeholder(float),  # where i = j; None: as alpha
                    "within": "both",  # where i = j: both | query | metamix
                },
                "intra": {"alpha": 2.0, "within": "both"},
                "cross": {"alpha": 2.0},
                # Of Beta(alpha, alpha): its own paper has 2, for Pose 0.5; as for MLTI
                # where i = j. Its channel shuffle is an option.
                "metamix": {"alpha": 2.0, "channel_shuffle": False},
                # Ni et al. (2021): the worst of 4 versions. sets: query | both
                "maxup": {"alpha": 2.0, "versions": 4, "sets": "query"},
                # Rajendran et al. (2020), for targets: a quarter of the period each.
                "metaaug": {
                    "shifts": (0.0, 0.25, 0.5, 0.75),
                    "period": placeholder(float),  # of targets; None: they have none
                },
                # Yin et al. (2020): beta of their code for Pose, which has rho begin at
                # -20 and moves it much further than our learning rates do.
                "metareg": {"beta": 1e-3, "initial_rho": -5.0},
                # Jamal and Qi (2019); the weight is our choice. measure: entropy |
                # theil | generalised_entropy | gini | atkinson | variance_of_logarithms
                "taml": {
                    "measure": "entropy",
                    "weight": 0.1,
                    "alpha": 2.0,  # of generalised_entropy
                    "epsilon": 0.5,  # of atkinson; our choice
                },
                # Lee et al. (2020): draws an inner step, in training and at test.
                "metadropout": {"samples": 1, "eval_samples": 30, "noise": 1.0},
            },
            "interpolation": {"method": "mixup", "layers": (0,)},
            "task": {"ways": 5, "shots": 1, "queries": 15},
            "train": {
                "steps": 10_000,
                "meta_batch_size": 4,
                "learning_rate": 1e-3,
                "log_every": 100,
                "checkpoint_every": 500,
                # How the tasks of a meta-batch are spread; None: as suits the machine.
                "devices": placeholder(int),
                "tasks_per_pass": placeholder(int),  # a device's at a time
                "compute_dtype": "float32",  # or bfloat16, for accelerators
            },
            "eval": {
                # None: all that are left. A reference, so that None can be overridden.
                "queries": FieldReference(15, field_type=int),
                "num_tasks": 600,
                "validation_tasks": 200,
                "every": 1000,
                "seed": 0,
                "tasks_per_pass": 8,
            },
        }
    )
