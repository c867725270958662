"""Ablation: only intra- or only cross-task interpolation (Sec. 5, App. E.4)."""

from experiments.paper.columns import LABEL_SHARING, NON_LABEL_SHARING
from experiments.paper.tables import Table, rows

ABLATION_LS = Table(
    name="ablation_ls",
    labels=("ablation_ls",),
    caption="Ablation Studies under label-sharing scenario.",
    columns=LABEL_SHARING,
    rows=(
        *rows(
            "maml",
            vanilla="2.383±0.087 57.34±1.25 77.09±0.85 57.22±1.01",
            intra="2.072±0.077 62.57±1.70 78.23±0.78 58.70±0.97",
            cross="2.017±0.072 65.34±1.78 78.64±0.80 59.60±1.00",
            mlti="1.976±0.073 65.92±1.17 79.14±0.73 60.28±1.00",
        ),
        *rows(
            "protonet",
            vanilla="n/a 65.41±1.10 74.84±0.87 61.06±0.94",
            intra="n/a 67.32±0.94 75.26±0.87 61.66±0.88",
            cross="n/a 69.97±0.85 76.32±0.85 62.48±0.91",
            mlti="n/a 70.14±0.92 76.90±0.81 63.47±0.96",
        ),
    ),
)

ABLATION_NLS = Table(
    name="ablation_nls",
    labels=("ablation_nls_app",),
    caption="Ablation study under the non-label-sharing scenario.",
    columns=NON_LABEL_SHARING,
    rows=(
        *rows(
            "maml",
            shots=1,
            vanilla="38.27±0.74 57.59±0.79 43.47±0.83 79.08±0.91",
            intra="39.31±0.75 60.39±0.93 47.16±0.86 81.49±0.91",
            cross="39.91±0.74 61.06±1.23 46.21±0.79 80.65±0.92",
            mlti="41.58±0.72 61.79±1.00 48.03±0.79 81.73±0.89",
        ),
        *rows(
            "maml",
            shots=5,
            vanilla="52.14±0.65 65.24±0.77 60.56±0.74 88.55±0.60",
            intra="52.74±0.74 68.96±0.74 63.65±0.70 89.89±0.62",
            cross="53.34±0.77 70.20±0.70 62.59±0.76 89.97±0.56",
            mlti="55.22±0.76 70.69±0.68 64.55±0.74 91.08±0.54",
        ),
        *rows(
            "protonet",
            shots=1,
            vanilla="36.26±0.70 58.56±1.01 44.21±0.75 80.03±0.90",
            intra="39.31±0.75 60.70±1.16 46.97±0.81 80.56±0.94",
            cross="40.95±0.76 62.22±1.19 48.68±0.85 81.22±0.90",
            mlti="41.36±0.75 62.82±1.13 49.38±0.85 81.89±0.88",
        ),
        *rows(
            "protonet",
            shots=5,
            vanilla="50.72±0.70 66.25±0.96 60.33±0.70 89.20±0.56",
            intra="53.33±0.68 70.12±0.88 62.91±0.75 89.78±0.58",
            cross="54.62±0.72 71.47±0.89 64.32±0.71 90.05±0.57",
            mlti="55.34±0.74 71.52±0.89 65.19±0.73 90.12±0.59",
        ),
    ),
)
