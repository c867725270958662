"""Networks as stacks of layers, any contiguous part of which can be run."""

from mlti_jax.backbones._albert import albert
from mlti_jax.backbones._conv4 import conv4
from mlti_jax.backbones._layers import ConvBlock, DenseBlock
from mlti_jax.backbones._mlp import mlp
from mlti_jax.backbones._pose import pose
from mlti_jax.backbones._registry import make
from mlti_jax.backbones._resnet12 import resnet12
from mlti_jax.backbones._stack import Context, Stack
from mlti_jax.backbones._text import word_mean
from mlti_jax.backbones._wrap import wrap

__all__ = [
    "Context",
    "ConvBlock",
    "DenseBlock",
    "Stack",
    "albert",
    "conv4",
    "make",
    "mlp",
    "pose",
    "resnet12",
    "word_mean",
    "wrap",
]
