"""Users' own data: arrays, folders of pictures and tables, as pools.

`from_arrays`, `from_folder` and `from_table` return `Splits` as every other dataset
does. Beside the pools these hold `inputs`, the record of how raw data became arrays,
which new data is treated by.
"""

from mlti_jax.data._own.arrays import from_arrays
from mlti_jax.data._own.folders import from_folder
from mlti_jax.data._own.inputs import Inputs
from mlti_jax.data._own.splitting import split_names
from mlti_jax.data._own.tables import from_table

__all__ = ["Inputs", "from_arrays", "from_folder", "from_table", "split_names"]
