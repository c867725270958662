"""Share of the variance of real features that lies between tasks (App. B.3)."""

from __future__ import annotations

import jax
import numpy as np

from mlti_jax import data, theory
from mlti_jax.data import DomainPool
from mlti_jax.data._pools import take_inputs
from mlti_jax.data._registry import dataset_builder

NUM_EIGENVALUES = 20
MOLECULES = {"nci": "NCI", "metabolism": "Metabolism"}
PARTS = ("within_class", "between_classes", "between_tasks")


def load_pools(data_dir: str | None) -> dict[str, DomainPool]:
    """Load the training pools of the available datasets, by name.

    RainbowMNIST uses the images of the install; molecules are added if prepared.
    """
    splits = data.load("rainbow_mnist", source="builtin", images_per_class=8)
    pools = {"RainbowMNIST, pixels": splits.train}
    for name, title in MOLECULES.items():
        if dataset_builder(name, data_dir).is_prepared():
            splits = data.load(name, data_dir=data_dir)
            pools[f"{title}, fingerprints"] = splits.train
    return pools


def samples(pool: DomainPool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Network inputs `[N, D]`, and the domain and class of each sample."""
    index, count = np.asarray(pool.index), np.asarray(pool.count)
    real = np.arange(index.shape[-1]) < count[..., None]
    tasks, classes, _ = np.nonzero(real)
    x = np.asarray(take_inputs(pool.x, index[real]))
    return x.reshape(len(x), -1), tasks, classes


def measure(name: str, pool: DomainPool) -> dict:
    """Compute traces and eigenvalues of the covariances within and between tasks."""
    features, tasks, classes = samples(pool)
    numbers = (len(pool.domains), len(pool.classes))
    found = theory.covariances(features, tasks, classes, *numbers)
    found = jax.tree.map(np.asarray, found)
    largest = {
        part: np.linalg.eigvalsh(getattr(found, part))[::-1][:NUM_EIGENVALUES].tolist()
        for part in ("within_task", "total")
    }
    trace = {part: float(np.trace(value)) for part, value in found._asdict().items()}
    return {
        "data": name,
        "samples": len(features),
        "dimensions": features.shape[1],
        "tasks": numbers[0],
        "trace": trace,
        "eigenvalues": largest,
        "tasks_above_total": _tasks_above(features, tasks, found.total),
    }


def _tasks_above(features: np.ndarray, tasks: np.ndarray, total: np.ndarray) -> int:
    """Count tasks whose variance exceeds `total` in their main direction.

    The main direction is that of a task's largest variance. Assumes balanced classes.
    """
    above = 0
    for task in np.unique(tasks):
        own = features[tasks == task]
        _, singular, directions = np.linalg.svd(own - own.mean(0), full_matrices=False)
        above += bool(
            singular[0] ** 2 / len(own) > directions[0] @ total @ directions[0]
        )
    return above


def table(results: list[dict]) -> str:
    """Format traces and leading eigenvalues, one line per dataset."""
    lines = [
        "Variance of a partner's features",
        f"{'':26}{'within':>9}{'classes':>9}{'tasks':>9}{'total':>9}"
        f"{'largest eigenvalue':>21}{'tasks':>8}",
        f"{'':26}{'classes':>9}{'apart':>9}{'apart':>9}{'':>9}"
        f"{'in a task':>12}{'total':>9}{'above':>8}",
    ]
    for result in results:
        trace = result["trace"]
        first = [result["eigenvalues"][part][0] for part in ("within_task", "total")]
        above = f"{result['tasks_above_total']}/{result['tasks']}"
        lines.append(
            f"{result['data']:26}"
            + "".join(f"{trace[part]:>9.2f}" for part in (*PARTS, "total"))
            + f"{first[0]:>12.2f}{first[1]:>9.2f}{above:>8}"
        )
    return "\n".join(lines)
