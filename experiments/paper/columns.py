"""Datasets as table columns."""

from __future__ import annotations

from experiments.paper.tables import Column, Settings, Variant

SPLIT = Variant("split", paper="paper", alternative="disjoint")
# Meta-Reg needs trained parameters that the inner loop does not adapt; see the config.
ENCODER = Variant(
    "encoder",
    paper="albert",
    alternative="word_mean",
    alternative_overrides={"metareg": (("learner.maml.adapted_layers", (-1,)),)},
)

NCI = Column("NCI (5-shot)", "nci", variant=SPLIT)
METABOLISM = Column("Metabolism (5-shot)", "metabolism", variant=SPLIT)
LABEL_SHARING = (
    Column("Pose (15-shot)", "pose", metric="mse"),
    Column("RMNIST (1-shot)", "rainbow_mnist"),
    NCI,
    METABOLISM,
)

MINI = Column("miniImagenet-S", "mini_imagenet")
DERMNET = Column("DermNet-S", "dermnet")
TABULA_MURIS = Column("Tabular Murris", "tabula_muris")
# The rows specify the number of shots.
NON_LABEL_SHARING = (MINI, Column("ISIC", "isic"), DERMNET, TABULA_MURIS)


def one_and_five_shots(
    title: str,
    config: str,
    *,
    arguments: Settings = (),
    overrides: Settings = (),
    variant: Variant | None = None,
) -> tuple[Column, Column]:
    """Return the 1-shot and the 5-shot column of a dataset."""
    one, five = (
        Column(
            f"{title}, {shots}-shot",
            config,
            arguments=(("shots", shots), *arguments),
            overrides=overrides,
            variant=variant,
        )
        for shots in (1, 5)
    )
    return one, five
