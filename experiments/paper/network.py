"""ResNet-12, and the choice of interpolation layers (App. E.5)."""

import dataclasses

from experiments.paper.columns import DERMNET, METABOLISM, MINI, TABULA_MURIS
from experiments.paper.tables import Table, row, rows

ONE_SHOT = (("shots", 1),)

RESNET12 = Table(
    name="resnet12",
    labels=("overall_resnet",),
    caption=(
        "Analysis on the heavier base model (ResNet-12) under 1-shot miniImagenet-S "
        "and DermNet-S settings."
    ),
    columns=tuple(
        dataclasses.replace(
            column, arguments=ONE_SHOT, overrides=(("backbone.name", "resnet12"),)
        )
        for column in (MINI, DERMNET)
    ),
    rows=(
        *rows(
            "maml",
            vanilla="40.02±0.78 47.58±0.93",
            metamix="42.26±0.75 51.40±0.89",
            maxup="41.97±0.78 50.82±0.85",
            mlti="43.35±0.80 52.03±0.90",
        ),
        *rows(
            "protonet",
            vanilla="40.96±0.75 48.65±0.85",
            metamix="42.95±0.87 51.18±0.90",
            maxup="42.68±0.78 50.96±0.88",
            mlti="44.08±0.83 52.01±0.93",
        ),
    ),
)

INTERPOLATION_LAYERS = Table(
    name="interpolation_layers",
    labels=("interpolation_layer",),
    caption="Analysis of interpolation layers.",
    columns=(
        METABOLISM,
        dataclasses.replace(
            TABULA_MURIS, title="Tabular Murris (1-shot)", arguments=ONE_SHOT
        ),
    ),
    rows=(
        row("protonet", "vanilla", "61.06±0.94 80.03±0.90", title="None"),
        row(
            "protonet",
            "mlti",
            "62.53±0.98 81.18±0.93",
            title="Layer 0",
            overrides=(("interpolation.layers", (0,)),),
        ),
        row(
            "protonet",
            "mlti",
            "62.38±0.94 81.25±0.90",
            title="Layer 1",
            overrides=(("interpolation.layers", (1,)),),
        ),
        row("protonet", "mlti", "63.47±0.96 81.89±0.88", title="Layer 0, 1"),
    ),
)
