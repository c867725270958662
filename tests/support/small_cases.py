"""The benchmark's cases at a small size."""

import dataclasses


def shrink(case):
    """Shrink the samples, tasks, network and pool of a case."""
    small = {"image_shape": (16, 16, case.image_shape[-1]), "layers": case.layers[:2]}
    if case.backbone == "mlp":
        small = {"image_shape": (8,), "layers": (0,), "hidden": (4, 3)}
    ways = min(case.ways, 3)
    groups = {"label_sharing": (3, ways), "non_label_sharing": (5,), "regression": (4,)}
    return dataclasses.replace(
        case,
        **small,
        pool=(*groups[case.setting], 6),
        ways=ways,
        shots=min(case.shots, 2),
        queries=min(case.queries, 2),
        filters=2,
        block_filters=(2, 2, 2, 2),
        width=0.05,
        tasks=2,
        inner_steps=1,
    )
