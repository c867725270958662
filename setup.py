"""Packaging; `pip install -e .` for the project, with extras for what is rarer."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "mlti_jax" / "__init__.py").read_text()
).group(1)

setup(
    name="mlti_jax",
    version=VERSION,
    description="Meta-learning with fewer tasks through task interpolation, in JAX",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["mlti_jax*", "experiments*"]),
    install_requires=[
        "absl-py>=2.1",
        "array_record>=0.6",
        "chex>=0.1.90",
        "flax>=0.12.0",
        "importlib_resources>=6.0",  # TFDS imports it without asking for it.
        "jax>=0.10.0",
        "jaxlib>=0.10.0",
        "matplotlib>=3.8",
        "ml-collections>=1.0.0",
        "mlxtend>=0.23",
        "numpy>=1.26",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.12.0",
        "pandas>=2.0",
        "pillow>=10.0",
        "pyarrow>=14.0",  # Parquet files
        "scikit-learn>=1.4",
        "tensorboardX>=2.6",
        "tensorflow-datasets>=4.9.8",
        "tqdm>=4.66",
    ],
    extras_require={
        "bio": ["rdkit>=2024.3"],  # molecules: NCI and Metabolism
        "cells": ["anndata>=0.10"],  # Tabula Muris
        "text": ["safetensors>=0.4", "tokenizers>=0.20", "wordllama>=0.4"],  # Huffpost
        "test": [
            "hypothesis>=6.100",
            "ipykernel>=6.29",
            "nbclient>=0.10",
            "pytest>=8.0",
            "pytest-xdist>=3.5",
            "rdkit>=2024.3",
            "ruff>=0.8",
            "safetensors>=0.4",
            "scanpy>=1.10",
            "tokenizers>=0.20",
            "wordllama>=0.4",
        ],
        # Compared with in tests and benchmarks; never needed to run the package.
        "torch": ["torch>=2.4"],
    },
)
