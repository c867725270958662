"""The datasets as columns, see the configs for what the paper does with each."""

from __future__ import annotations

from experiments.paper.tables import Column, Settings, Variant

SPLIT = Variant("split", paper="paper", other="disjoint")
# Meta-Reg needs weights that are shared and trained, see the config.
ENCODER = Variant(
    "encoder",
    paper="albert",
    other="word_mean",
    other_overrides={"metareg": (("learner.maml.adapted_layers", (-1,)),)},
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
# Their rows say how many shots.
NON_LABEL_SHARING = (MINI, Column("ISIC", "isic"), DERMNET, TABULA_MURIS)


def one_and_five_shots(
    title: str,
    config: str,
    *,
    arguments: Settings = (),
    overrides: Settings = (),
    variant: Variant | None = None,
) -> tuple[Column, Column]:
    """The two columns of a dataset whose shots the columns say."""
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
