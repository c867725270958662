"""Meta-batches in PyTorch: drawn from a pool on the device, and interpolated.

A task lists its support set, then its query set, each ordered by class: either set, or
both as one batch, is a view. Shapes: x `[tasks, n, ...]` and y `[tasks, n]` (classes)
or `[tasks, n, D]` (soft labels, targets) with n = ways * (shots + queries).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.benchmark.cases import Case


class TaskPool(NamedTuple):
    """Samples on the device.

    Attributes:
      x: `[M, ...]`, uint8 or float32; images are `[M, C, H, W]` or, if `nhwc`,
        `[M, H, W, C]`.
      y: targets `[M, D]`; None for classes.
      index: rows of x, `[domains, classes, samples]` or `[groups, samples]`.
      nhwc: whether images are stored, and gathered, with the channels last.
    """

    x: Tensor
    y: Tensor | None
    index: Tensor
    nhwc: bool


def make_task_pool(
    case: Case,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    pool_y: np.ndarray | None = None,
    nhwc: bool = False,
) -> TaskPool:
    """Put samples on the device; arguments as in `steps.make_step`."""
    index = torch.from_numpy(np.asarray(pool_index, np.int64))
    _check_index(case, tuple(index.shape))
    x = torch.from_numpy(np.ascontiguousarray(pool_x))
    x = x if x.dtype == torch.uint8 else x.float()
    nhwc = nhwc and x.ndim == 4
    if x.ndim == 4 and not nhwc:
        x = x.movedim(-1, 1).contiguous()
    y = None
    if case.setting == "regression":
        if pool_y is None:
            pool_y = np.random.default_rng(1).uniform(0, 10, (len(x), case.ways))
        y = torch.from_numpy(np.asarray(pool_y, np.float32))
    return TaskPool(x, y, index, nhwc)


def set_sizes(case: Case) -> list[int]:
    """Number of samples in a support set and in a query set."""
    return [case.ways * case.shots, case.ways * case.queries]


def draw_tasks(case: Case, pool: TaskPool) -> tuple[Tensor, Tensor]:
    """Draw x and y of a meta-batch."""
    if case.setting == "label_sharing":
        rows = pool.index[torch.randint(len(pool.index), (case.tasks,))]
    else:
        groups = _permutations(case.tasks, len(pool.index))[:, : case.ways]
        rows = pool.index[groups]
    chosen = _permutations(*rows.shape)[..., : case.shots + case.queries]
    rows = rows.gather(2, chosen).split([case.shots, case.queries], 2)
    rows = torch.cat([r.flatten(1) for r in rows], 1)
    x = pool.x.index_select(0, rows.flatten())
    x = x.float().div_(255) if x.dtype == torch.uint8 else x
    x = x.view(*rows.shape, *x.shape[1:])
    x = x.movedim(-1, 2) if pool.nhwc else x
    if pool.y is not None:
        return x, pool.y[rows]
    return x, class_labels(case).expand(case.tasks, -1)


def class_labels(case: Case) -> Tensor:
    """The class of each sample of a task, `[n]`."""
    classes = torch.arange(case.ways)
    sizes = (case.shots, case.queries)
    return torch.cat([classes.repeat_interleave(size) for size in sizes])


def interpolate(case: Case, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mix each task with a partner from the meta-batch, possibly itself.

    Learners with an inner loop mix random pairs of samples and their labels or targets
    (Eq. 5), except for non-label-sharing tasks. All others mix pairs of classes, which
    keep the labels of the task (Eq. 6).

    Args:
      case: as returned by `check_case`.
      x: the tasks, at any layer.
      y: their classes or targets.

    Returns:
      x and y of the mixed tasks; mixed classes are soft labels.
    """
    mix_labels = case.adapts and case.setting != "non_label_sharing"
    pairs = _sample_pairs if mix_labels else _class_pairs
    tasks = len(x)
    partners = torch.randint(tasks, (tasks,))
    lams = torch.distributions.Beta(case.alpha, case.alpha).sample((tasks,))
    orders = torch.stack([pairs(case) for _ in range(tasks)])
    if case.interpolation == "cutmix":
        boxes = [_cutmix_box(*x.shape[-2:], lam) for lam in lams.tolist()]
        lams = torch.tensor([lam for *_, lam in boxes])
        mixed = x.clone()
        for i, (rows, columns, _) in enumerate(boxes):
            box = x[partners[i], :, :, rows, columns]
            mixed[i, :, :, rows, columns] = box[orders[i]]
    else:
        mixed = torch.lerp(x[partners[:, None], orders], x, _as_rank(lams, x.ndim))
    if not mix_labels:
        return mixed, y
    if y.ndim == 2:
        y = F.one_hot(y, case.ways).to(x.dtype)
    y = torch.lerp(y[partners[:, None], orders], y, _as_rank(lams, y.ndim))
    return mixed, y


def choose(values: Sequence[int]) -> int:
    """Draw one of the values."""
    return values[torch.randint(len(values), ()).item()]


def _as_rank(a: Tensor, rank: int) -> Tensor:
    return a.view(-1, *(1,) * (rank - 1))


def _sample_pairs(case: Case) -> Tensor:
    """Partner of each sample, `[n]`: a random one of the same set."""
    support, query = set_sizes(case)
    return torch.cat([torch.randperm(support), support + torch.randperm(query)])


def _class_pairs(case: Case) -> Tensor:
    """Partner of each sample, `[n]`: one pairing of classes for both sets."""
    classes = torch.randperm(case.ways)[:, None]
    support = classes * case.shots + _permutations(case.ways, case.shots)
    query = classes * case.queries + _permutations(case.ways, case.queries)
    return torch.cat([support.flatten(), case.ways * case.shots + query.flatten()])


def _cutmix_box(height: int, width: int, lam: float) -> tuple[slice, slice, float]:
    """Box of area `1 - lam` around a uniform center, and the share outside of it."""
    side = math.sqrt(1 - lam)
    spans = []
    for size in (height, width):
        center, half = choose(range(size)), int(size * side) // 2
        spans.append(slice(max(center - half, 0), min(center + half, size)))
    area = math.prod(span.stop - span.start for span in spans)
    return *spans, 1 - area / (height * width)


def _permutations(*shape: int) -> Tensor:
    """Independent random permutations along the last axis."""
    return torch.rand(shape).argsort(-1)


def _check_index(case: Case, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` for shapes that would run but measure something else."""
    if case.setting != "label_sharing":
        if len(shape) != 2:
            raise ValueError(
                f"pool_index has shape {shape}; expected [groups, samples]."
            )
    elif len(shape) != 3 or shape[1] != case.ways:
        raise ValueError(
            f"pool_index has shape {shape}; expected [domains, {case.ways}, samples], "
            "because label-sharing tasks have all classes."
        )
