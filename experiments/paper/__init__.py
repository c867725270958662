"""The paper's result tables as data, one file per group of tables.

Numbers are as printed in the paper. Figures are not included, since the paper does
not print their numbers. The two tables of hyper-parameters are in the configs.
"""

from experiments.paper import (
    ablation,
    compatibility,
    network,
    overall,
    task_numbers,
    transfer,
)
from experiments.paper.tables import Cell, Column, Row, Run, Table

TABLES = {
    table.name: table
    for table in (
        overall.OVERALL_LS,
        ablation.ABLATION_LS,
        compatibility.COMPATIBILITY_LS,
        overall.OVERALL_NLS,
        ablation.ABLATION_NLS,
        compatibility.COMPATIBILITY_NLS,
        transfer.CROSS_DOMAIN,
        task_numbers.FULL_SIZE,
        network.RESNET12,
        network.INTERPOLATION_LAYERS,
        task_numbers.EXTREMELY_LIMITED,
        transfer.ADDITIONAL_DATASETS,
    )
}

__all__ = ["TABLES", "Cell", "Column", "Row", "Run", "Table"]
