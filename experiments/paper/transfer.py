"""Cross-domain adaptation (Sec. 5), and additional datasets (App. E.8)."""

from experiments.paper.columns import ENCODER, one_and_five_shots
from experiments.paper.tables import Table, rows

CROSS_DOMAIN = Table(
    name="cross_domain",
    labels=("cross_nls", "cross_nls_full_app"),
    caption=(
        "Full table (accuracy ± 95% confidence interval) of the cross-domain "
        "adaptation under the non-label-sharing scenario."
    ),
    columns=(
        *one_and_five_shots(
            "miniImagenet-S to DermNet-S",
            "mini_imagenet",
            arguments=(("test_on", "dermnet"),),
        ),
        *one_and_five_shots(
            "DermNet-S to miniImagenet-S",
            "dermnet",
            arguments=(("test_on", "mini_imagenet"),),
        ),
    ),
    rows=(
        *rows(
            "maml",
            vanilla="33.67±0.61 50.40±0.63 28.40±0.55 40.93±0.63",
            mlti="36.74±0.64 52.56±0.62 30.03±0.58 42.25±0.64",
        ),
        *rows(
            "protonet",
            vanilla="33.12±0.60 50.13±0.65 28.11±0.53 40.35±0.61",
            mlti="35.46±0.63 51.79±0.62 30.06±0.56 42.23±0.61",
        ),
    ),
)

ADDITIONAL_DATASETS = Table(
    name="additional_datasets",
    labels=("additional_data",),
    caption="Results on Huffpost and tieredImageNet-S.",
    columns=(
        *one_and_five_shots("tieredImageNet-S", "tiered_imagenet"),
        *one_and_five_shots("Huffpost", "huffpost", variant=ENCODER),
    ),
    rows=(
        *rows(
            "maml",
            vanilla="42.20±0.84 58.23±0.77 39.51±1.07 50.68±0.90",
            metareg="42.87±0.86 59.16±0.79 40.32±1.05 50.96±0.98",
            taml="42.86±0.84 59.33±0.76 40.03±1.00 50.89±0.88",
            metadropout="41.94±0.82 58.37±0.77 39.89±0.98 51.03±0.91",
            metamix="43.40±0.85 61.92±0.80 40.64±1.02 51.65±0.92",
            maxup="43.69±0.88 60.00±0.82 40.39±1.01 51.80±0.91",
            mlti="44.32±0.82 62.22±0.79 41.06±1.04 52.53±0.90",
        ),
        *rows(
            "protonet",
            vanilla="43.35±0.82 59.98±0.77 41.85±1.01 58.98±0.92",
            metamix="44.14±0.83 60.97±0.81 42.27±0.98 60.43±0.90",
            maxup="44.40±0.83 61.79±0.78 42.39±1.01 60.27±0.88",
            mlti="45.47±0.86 62.35±0.80 42.74±0.96 61.09±0.91",
        ),
    ),
)
