"""All training classes (App. E.2), and only eight (App. E.7)."""

from experiments.paper.columns import one_and_five_shots
from experiments.paper.tables import Table, row, rows

FULL_SIZE = Table(
    name="full_size",
    labels=("overall_fullsize",),
    caption=(
        "Results (averaged accuracy ± 95% confidence interval) of full-size "
        "miniImagenet and DermNet."
    ),
    columns=(
        *one_and_five_shots(
            "miniImagenet-full",
            "mini_imagenet",
            overrides=(("dataset.train_classes", 64),),
        ),
        *one_and_five_shots(
            "DermNet-full", "dermnet", overrides=(("dataset.train_classes", 150),)
        ),
    ),
    rows=(
        *rows(
            "maml",
            vanilla="46.90±0.79 63.02±0.68 49.58±0.83 69.15±0.69",
            metareg="47.02±0.77 63.19±0.69 50.10±0.86 69.73±0.70",
            taml="46.40±0.82 63.26±0.68 50.26±0.85 69.40±0.75",
            metadropout="47.47±0.81 64.11±0.71 51.10±0.84 69.08±0.69",
            metamix="47.81±0.78 64.22±0.68 51.83±0.83 71.57±0.67",
            maxup="47.68±0.79 63.51±0.75 51.95±0.88 70.84±0.68",
            mlti="48.62±0.76 64.65±0.70 52.32±0.88 71.77±0.67",
        ),
        *rows(
            "protonet",
            vanilla="47.05±0.79 64.03±0.68 49.91±0.79 67.45±0.70",
            metamix="47.21±0.76 64.38±0.67 51.50±0.76 69.55±0.68",
            maxup="47.33±0.79 64.43±0.69 51.18±0.83 69.07±0.72",
            mlti="48.11±0.81 65.22±0.70 52.91±0.81 71.30±0.69",
        ),
    ),
)

EXTREMELY_LIMITED = Table(
    name="extremely_limited",
    labels=("extremly_small",),
    caption="Results of MLTI with extremely limited tasks.",
    columns=(
        *one_and_five_shots(
            "miniImagenet (8 classes)",
            "mini_imagenet",
            overrides=(("dataset.train_classes", 8),),
        ),
        *one_and_five_shots(
            "DermNet (8 classes)", "dermnet", overrides=(("dataset.train_classes", 8),)
        ),
    ),
    rows=(
        row("sl", "vanilla", "32.37±0.60 45.57±0.69 35.69±0.58 53.38±0.60", title=""),
        row("mtl", "vanilla", "33.01±0.64 46.79±0.65 36.20±0.64 54.53±0.63", title=""),
        *rows(
            "maml",
            vanilla="36.09±0.75 50.01±0.67 37.98±0.66 54.35±0.67",
            metamix="37.74±0.77 51.79±0.68 40.36±0.73 55.75±0.69",
            mlti="38.13±0.70 53.53±0.72 41.32±0.71 56.95±0.64",
        ),
        *rows(
            "protonet",
            vanilla="35.07±0.73 45.10±0.63 37.72±0.67 53.18±0.66",
            metamix="38.12±0.71 50.25±0.69 40.07±0.69 55.07±0.68",
            mlti="39.64±0.77 51.64±0.65 41.31±0.71 56.09±0.67",
        ),
    ),
)
