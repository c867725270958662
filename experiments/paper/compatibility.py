"""MLTI with learners other than MAML and ProtoNet (App. D.2 and E.3)."""

from experiments.paper.columns import LABEL_SHARING, NON_LABEL_SHARING
from experiments.paper.tables import Table, rows

COMPATIBILITY_LS = Table(
    name="compatibility_ls",
    labels=("compatibility_ls",),
    caption=(
        "Additional compatibility analysis under the label-sharing scenario "
        "(evaluation metric: MSE for Pose and accuracy for other datasets)."
    ),
    columns=LABEL_SHARING,
    rows=(
        *rows(
            "matchingnet",
            vanilla="n/a 73.87±1.24 75.03±0.89 60.95±0.94",
            mlti="n/a 75.36±0.81 76.81±0.77 63.02±1.09",
        ),
        *rows(
            "metasgd",
            vanilla="2.227±0.098 66.68±1.28 77.74±0.82 57.54±1.03",
            mlti="1.938±0.078 72.78±1.06 78.43±0.86 61.83±0.99",
        ),
        *rows(
            "anil",
            vanilla="6.947±0.159 56.52±1.18 77.65±0.79 57.63±1.07",
            mlti="6.042±0.146 64.63±1.47 78.46±0.75 60.34±1.01",
        ),
        *rows(
            "meta_curvature",
            vanilla="2.174±0.096 58.03±1.24 77.25±0.80 58.37±1.02",
            mlti="1.904±0.073 63.25±1.36 78.52±0.86 60.59±1.05",
        ),
    ),
)

COMPATIBILITY_NLS = Table(
    name="compatibility_nls",
    labels=("compatibility_nls_app",),
    caption=(
        "Additional compatibility analysis under the setting of the non-label-sharing"
        " scenario."
    ),
    columns=NON_LABEL_SHARING,
    rows=(
        *rows(
            "matchingnet",
            shots=1,
            vanilla="39.40±0.70 61.01±1.00 46.50±0.84 80.37±0.90",
            mlti="42.09±0.81 63.87±1.08 49.11±0.86 81.72±0.89",
        ),
        *rows(
            "metasgd",
            shots=1,
            vanilla="37.98±0.75 58.03±0.79 41.56±0.80 81.55±0.91",
            mlti="39.58±0.76 61.57±1.10 45.49±0.83 83.31±0.87",
        ),
        *rows(
            "anil",
            shots=1,
            vanilla="37.66±0.77 59.08±1.04 43.88±0.82 75.67±0.99",
            mlti="39.15±0.73 61.78±1.24 46.79±0.77 77.11±1.00",
        ),
        *rows(
            "meta_curvature",
            shots=1,
            vanilla="37.43±0.75 58.77±1.06 43.09±0.86 80.47±0.91",
            mlti="40.22±0.77 61.53±0.79 47.40±0.83 82.44±0.88",
        ),
        *rows(
            "matchingnet",
            shots=5,
            vanilla="50.21±0.68 70.16±0.72 62.56±0.71 85.99±0.76",
            mlti="54.59±0.72 73.62±0.84 65.65±0.71 87.75±0.60",
        ),
        *rows(
            "metasgd",
            shots=5,
            vanilla="49.52±0.73 68.01±0.87 58.97±0.73 91.03±0.55",
            mlti="53.19±0.69 70.44±0.65 63.86±0.71 92.05±0.51",
        ),
        *rows(
            "anil",
            shots=5,
            vanilla="49.21±0.70 69.48±0.66 60.54±0.76 81.32±0.89",
            mlti="52.76±0.72 72.01±0.68 63.07±0.71 82.75±0.89",
        ),
        *rows(
            "meta_curvature",
            shots=5,
            vanilla="49.66±0.69 68.29±0.85 60.03±0.72 89.30±0.56",
            mlti="53.42±0.71 70.58±0.82 63.10±0.68 91.23±0.52",
        ),
    ),
)
