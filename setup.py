"""Shim for tools that still look for `setup.py`; see `pyproject.toml`."""

from setuptools import setup

setup()
