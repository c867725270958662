"""Whole training steps in plain PyTorch: the other side of the speed comparison.

A step draws a meta-batch from a pool held on the device, interpolates its tasks
(Eqs. 5 and 6 of the paper), runs MAML with second-order gradients or ProtoNet task by
task, and updates the parameters with Adam. It is written as one writes it in PyTorch
when speed matters and no compiler is asked: one gather for the meta-batch, frozen
layers outside the inner loop, no copy that the mathematics does not need.

A *case* is any mapping, or object with attributes, that holds `learner` (maml,
protonet), `backbone` (conv4, mlp), `setting` (label_sharing, non_label_sharing),
`image_shape` ((height, width, channels), or (features,)), `filters` (of a convolution),
`hidden` (widths of the MLP), `ways`, `shots`, `queries`, `tasks`, `inner_steps`,
`inner_lr`, `first_adapted` (MAML's first adapted layer), `outer_lr`, `interpolation`
(None, cutmix, mixup), `alpha` (of the Beta distribution), and `layers` (from which the
interpolation layer is drawn; 0 is the input).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# A layer is a list of tensors: (weight, scale, shift) for a block, (weight, bias) for
# the head. The rank of a block's weight tells a convolution from a matrix.
Layers = Sequence[Sequence[Tensor]]


def make_step(
    case: Any,
    pool_x: np.ndarray,
    pool_index: np.ndarray,
    *,
    channels_last: bool = False,
) -> Callable[[], Tensor]:
    """Builds a training step with its own parameters and Adam state.

    Args:
      case: the setting to run, as described at the head of this file.
      pool_x: all samples, `[M, H, W, C]` images or `[M, F]` features; `uint8` values
        are divided by 255 after the gather, floating-point ones are taken as they are.
      pool_index: rows of `pool_x`, `[domains, classes, samples]` for label-sharing
        tasks, which have all classes, and `[classes, samples]` otherwise.
      channels_last: whether images and kernels lie in memory as NHWC; the shapes that
        PyTorch sees, and the results, are the same.

    Returns:
      A function without arguments that makes one update and returns the loss before
      it as a detached scalar. Its attribute `model` holds the parameters by layer.
    """
    case = SimpleNamespace(**case) if isinstance(case, Mapping) else case
    index = torch.from_numpy(np.asarray(pool_index, np.int64))
    _check(case, index)
    pool = torch.from_numpy(np.ascontiguousarray(pool_x))
    pool = pool if pool.dtype == torch.uint8 else pool.float()
    nhwc = channels_last and pool.ndim == 4
    if pool.ndim == 4 and not nhwc:
        pool = pool.movedim(-1, 1).contiguous()

    layers = init_layers(case, nhwc)
    parameters = [p for layer in layers for p in layer]
    optimizer = torch.optim.Adam(parameters, case.outer_lr, fused=True)
    classes, sizes = torch.arange(case.ways), (case.shots, case.queries)
    labels = torch.cat([classes.repeat_interleave(size) for size in sizes])

    def step() -> Tensor:
        x = sample_tasks(case, pool, index)
        x = x.movedim(-1, 2) if nhwc else x
        layer = _choose(case.layers) if case.interpolation else 0
        losses = task_losses(case, layers, x, labels, layer)
        # One backward a task frees its graph, so that the next uses the same memory.
        # Hidden representations that were mixed tie the graphs together.
        losses = [sum(losses)] if layer else losses
        optimizer.zero_grad()
        total = torch.zeros(())
        for loss in losses:
            (loss / case.tasks).backward()
            total += loss.detach()
        optimizer.step()
        return total / case.tasks

    step.model = layers
    return step


def init_layers(case: Any, nhwc: bool = False) -> list[list[Tensor]]:
    """Makes the parameters: blocks, then for MAML a linear head to `ways` classes."""
    if case.backbone == "conv4":
        height, width, channels = case.image_shape
        widths = [channels] + [case.filters] * 4
        shapes = [(o, i, 3, 3) for i, o in pairwise(widths)]
        features = case.filters * (height // 16) * (width // 16)
    else:
        widths = [*case.image_shape, *case.hidden]
        shapes = [(o, i) for i, o in pairwise(widths)]
        features = widths[-1]
    layers = [
        [_weight(shape), torch.ones(shape[0]), torch.zeros(shape[0])]
        for shape in shapes
    ]
    if case.learner == "maml":
        layers.append([_weight((case.ways, features)), torch.zeros(case.ways)])
    if nhwc:
        for block in layers[:4]:
            block[0] = block[0].contiguous(memory_format=torch.channels_last)
    return [[p.requires_grad_() for p in layer] for layer in layers]


def run_layers(layers: Layers, h: Tensor) -> Tensor:
    """Runs some consecutive layers; batch norm takes the statistics of `h` itself."""
    for weight, *rest in layers:
        if len(rest) == 1:
            h = F.linear(h.flatten(1), weight, *rest)
        elif weight.ndim == 4:
            h = _batch_norm(F.conv2d(h, weight, padding=1), *rest)
            # ReLU commutes with the maximum, and has a quarter to do after it.
            h = F.relu(F.max_pool2d(h, 2))
        else:
            h = F.leaky_relu(_batch_norm(F.linear(h, weight), *rest), 0.01)
    return h


def sample_tasks(case: Any, pool: Tensor, index: Tensor) -> Tensor:
    """Draws a meta-batch `[tasks, ways * (shots + queries), ...]`.

    A task lists its support set, then its query set, each class by class, so that
    either set, or both as one batch, is a view.
    """
    per_class = case.shots + case.queries
    if case.setting == "label_sharing":
        rows = index[torch.randint(len(index), (case.tasks,))]
    else:
        rows = index[_permutations(case.tasks, len(index))[:, : case.ways]]
    chosen = _permutations(*rows.shape)[..., :per_class]
    rows = rows.gather(2, chosen).split([case.shots, case.queries], 2)
    rows = torch.cat([r.flatten(1) for r in rows], 1)
    x = pool.index_select(0, rows.flatten())
    x = x.float().div_(255) if x.dtype == torch.uint8 else x
    return x.view(*rows.shape, *x.shape[1:])


def task_losses(
    case: Any, layers: Layers, x: Tensor, labels: Tensor, layer: int
) -> Iterator[Tensor]:
    """Interpolates the tasks at `layer` and yields the learner's loss of each.

    `x` is a meta-batch as `sample_tasks` gives it, `labels` the class of each sample
    of a task, `[ways * (shots + queries)]`.
    """
    support = case.ways * case.shots
    # Sets that share batch-norm statistics.
    sets = [support, len(labels) - support] if case.learner == "maml" else [len(labels)]
    tasks, targets = list(x), [labels] * len(x)
    if layer:
        for i, task in enumerate(tasks):
            h = [run_layers(layers[:layer], h) for h in task.split(sets)]
            tasks[i] = torch.cat(h)
    if case.interpolation:
        tasks, targets = interpolate(case, tasks, labels)
    for task, target in zip(tasks, targets, strict=True):
        if case.learner == "maml":
            first = case.first_adapted
            h = [run_layers(layers[layer:first], h) for h in task.split(sets)]
            yield maml_loss(case, layers[first:], h, target.split(sets))
        else:
            yield protonet_loss(case, run_layers(layers[layer:], task), target)


def maml_loss(
    case: Any, layers: Layers, h: Sequence[Tensor], y: Sequence[Tensor]
) -> Tensor:
    """Query loss of one task after second-order gradient steps on its support set.

    `layers` are the adapted ones, `h` is what enters them and `y` the classes or soft
    labels, both as a pair of support and query set.
    """
    adapted = layers
    for _ in range(case.inner_steps):
        loss = F.cross_entropy(run_layers(adapted, h[0]), y[0])
        flat = [p for layer in adapted for p in layer]
        gradients = iter(torch.autograd.grad(loss, flat, create_graph=True))
        adapted = [
            [p.sub(next(gradients), alpha=case.inner_lr) for p in layer]
            for layer in adapted
        ]
    return F.cross_entropy(run_layers(adapted, h[1]), y[1])


def protonet_loss(case: Any, z: Tensor, labels: Tensor) -> Tensor:
    """Query loss of one task from the embeddings of its support and query sets."""
    support = case.ways * case.shots
    support_z, query_z = z.flatten(1).tensor_split([support])
    prototypes = support_z.unflatten(0, (case.ways, case.shots)).mean(1)
    distances = (query_z[:, None] - prototypes).square().sum(-1)
    return F.cross_entropy(-distances, labels[support:])


def interpolate(
    case: Any, tasks: Sequence[Tensor], labels: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Mixes each task with a partner from the meta-batch, perhaps itself.

    MAML on label-sharing tasks mixes random pairs of samples and their labels (Eq. 5);
    everything else pairs whole classes, which keep the labels of the task (Eq. 6).
    Returns the mixed tasks, and their soft labels `[n, ways]` or classes `[n]`.
    """
    mix_labels = case.learner == "maml" and case.setting == "label_sharing"
    partners = torch.randint(len(tasks), (len(tasks),)).tolist()
    lams = torch.distributions.Beta(case.alpha, case.alpha).sample((len(tasks),))
    one_hot = F.one_hot(labels, case.ways).float()
    mixed, targets = [], []
    for task, j, lam in zip(tasks, partners, lams.tolist(), strict=True):
        order = _sample_pairs(case) if mix_labels else _class_pairs(case)
        if case.interpolation == "cutmix":
            rows, columns, lam = _cutmix_box(*task.shape[2:], lam)
            h = task.clone()
            h[:, :, rows, columns] = tasks[j][:, :, rows, columns][order]
        else:
            h = torch.lerp(tasks[j][order], task, lam)
        mixed.append(h)
        if mix_labels:
            targets.append(torch.lerp(one_hot[order], one_hot, lam))
        else:
            targets.append(labels)
    return mixed, targets


def _sample_pairs(case: Any) -> Tensor:
    """Partner sample of each sample: any of the same set."""
    support, query = case.ways * case.shots, case.ways * case.queries
    return torch.cat([torch.randperm(support), support + torch.randperm(query)])


def _class_pairs(case: Any) -> Tensor:
    """Partner sample of each sample: one pairing of classes for both sets."""
    classes = torch.randperm(case.ways)[:, None]
    support = classes * case.shots + _permutations(case.ways, case.shots)
    query = classes * case.queries + _permutations(case.ways, case.queries)
    return torch.cat([support.flatten(), case.ways * case.shots + query.flatten()])


def _cutmix_box(height: int, width: int, lam: float) -> tuple[slice, slice, float]:
    """Box of area `1 - lam` about a uniform centre, and the area kept outside it."""
    side = math.sqrt(1 - lam)
    spans = []
    for size in (height, width):
        centre, half = _choose(range(size)), int(size * side) // 2
        spans.append(slice(max(centre - half, 0), min(centre + half, size)))
    area = math.prod(span.stop - span.start for span in spans)
    return *spans, 1 - area / (height * width)


def _choose(values: Sequence[int]) -> int:
    return values[torch.randint(len(values), ()).item()]


def _permutations(*shape: int) -> Tensor:
    """Independent random permutations along the last axis."""
    return torch.rand(shape).argsort(-1)


def _batch_norm(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(h, None, None, scale, shift, training=True)


def _weight(shape: Sequence[int]) -> Tensor:
    return torch.nn.init.xavier_uniform_(torch.empty(shape))


def _check(case: Any, index: Tensor) -> None:
    """Refuses what would otherwise run and measure something else."""
    choices = {
        "learner": ("maml", "protonet"),
        "backbone": ("conv4", "mlp"),
        "setting": ("label_sharing", "non_label_sharing"),
        "interpolation": (None, "cutmix", "mixup"),
    }
    for field, allowed in choices.items():
        if (value := getattr(case, field)) not in allowed:
            raise ValueError(f"{field} is {value!r}; expected one of {allowed}.")
    shape, shared = tuple(index.shape), case.setting == "label_sharing"
    if shared and (len(shape) != 3 or shape[1] != case.ways):
        raise ValueError(
            f"pool_index has shape {shape}; expected [domains, {case.ways}, samples], "
            "because label-sharing tasks have all classes."
        )
    last = case.first_adapted if case.learner == "maml" else math.inf
    if case.interpolation and max(case.layers) > last:
        raise ValueError(
            f"layers is {case.layers}; MAML mixes at layer {last} at most."
        )
