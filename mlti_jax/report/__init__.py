"""Reports to look at: one self-contained HTML file per run or comparison.

`write_run` and `write_comparison` are what `experiments.run`, `fit` and `compare` call.
A `Page` of your own has sections of text, tables and figures. Needs Matplotlib and
Jinja (`pip install 'mlti_jax[plot]'`).
"""

from mlti_jax.report._charts import interval_plot
from mlti_jax.report._page import (
    Folded,
    Listing,
    Page,
    Picture,
    Section,
    Table,
    write_page,
)
from mlti_jax.report._write import write_comparison, write_run

__all__ = [
    "Folded",
    "Listing",
    "Page",
    "Picture",
    "Section",
    "Table",
    "interval_plot",
    "write_comparison",
    "write_page",
    "write_run",
]
