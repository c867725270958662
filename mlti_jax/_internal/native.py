"""C++ kernels for CPUs (`kernels/`), compiled on first use if there is a compiler.

There is a library for each dtype, in `$XDG_CACHE_HOME/mlti_jax/native` (by default in
`~/.cache`), with a name that depends on the source, the compiler, jaxlib and the CPU.
Without a compiler, or with `MLTI_NATIVE=0`, every operation uses its JAX form, which
gives the same values up to rounding.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from absl import logging

_FOLDER = pathlib.Path(__file__).with_name("kernels")
_SOURCE = _FOLDER / "kernels.cc"  # includes the other files
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-w")
_TIMEOUT_S = 120
_SUFFIXES = {jnp.dtype("float32"): "F32", jnp.dtype("float64"): "F64"}
_KERNELS = (
    "FirstBlock",
    "FirstBlockCotangent",
    "GatedPool",
    "GatedPoolCotangent",
    "KernelGradient",
    "Normal",
    "PoolMoments",
    "PoolMomentsCotangent",
    "PoolMomentsTangent",
    "TapConvolution",
    "TapGradient",
    "TapMirrored",
    "WinogradConvolution",
    "WinogradGradient",
    "WinogradMirrored",
)


def available(*operands: jax.Array | jax.ShapeDtypeStruct) -> bool:
    """Whether the kernels can be used: for operands of their dtypes, not empty."""
    suffix = _SUFFIXES.get(jnp.dtype(operands[0].dtype))
    empty = any(operand.size == 0 for operand in operands)
    return suffix is not None and not empty and _registered(suffix)


def call(
    name: str,
    outputs: jax.ShapeDtypeStruct | Sequence[jax.ShapeDtypeStruct],
    *operands: jax.Array,
) -> Any:
    """Call a kernel; all operands, except keys, and outputs have the same dtype.

    Args:
      name: of the kernel, without the suffix of the dtype.
      outputs: shape and dtype of each output.
      *operands: the arrays that it takes.

    Returns:
      An array, or one per output if `outputs` is a sequence.
    """
    dtype = jax.tree.leaves(outputs)[0].dtype
    target = _target(name, _SUFFIXES[jnp.dtype(dtype)])
    return jax.ffi.ffi_call(target, outputs)(*operands)


def _target(name: str, suffix: str) -> str:
    return f"mlti_jax_{name}{suffix}"


@functools.cache
def _registered(suffix: str) -> bool:
    """Compile, load and register the kernels; return whether that was possible."""
    if os.environ.get("MLTI_NATIVE", "1") == "0":
        return False
    try:
        library = _load(suffix)
    # `expanduser` raises RuntimeError without a home directory.
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        logging.warning(
            "native kernels are not available, using slower ones: %s; set MLTI_NATIVE=0"
            " to silence this",
            str(detail).strip()[:500],
        )
        return False
    if library is None:
        logging.info("no C++ compiler (c++, g++, clang++): no native kernels")
        return False
    for name in _KERNELS:
        capsule = jax.ffi.pycapsule(getattr(library, name + "Kernel"))
        target = _target(name, suffix)
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")
    return True


def _load(suffix: str) -> ctypes.CDLL | None:
    """Load the library, compiled before or now; None without a compiler."""
    compiler = _compiler()
    if compiler is None:
        return None
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
        raise OSError(f"{folder} belongs to another user; set XDG_CACHE_HOME")
    path = folder / f"kernels-{suffix}-{_fingerprint(compiler)}.so"
    if path.exists():
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # damaged: compile it again
            path.unlink(missing_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    command = [compiler, *_FLAGS, f"-DMLTI_TYPE={suffix}"]
    command += [f"-I{jax.ffi.include_dir()}", str(_SOURCE)]
    try:
        subprocess.run(
            [*command, "-o", str(temporary)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return ctypes.CDLL(str(path))


def _compiler() -> str | None:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next(filter(None, (shutil.which(n) for n in names if n)), None)


def _folder() -> pathlib.Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(cache).expanduser() / "mlti_jax/native"


def _fingerprint(compiler: str) -> str:
    """Digest of everything that the compiled library depends on."""
    version = subprocess.run(
        [compiler, "--version"],
        check=True,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    ).stdout
    parts = (
        *(path.read_text() for path in sorted(_FOLDER.glob("*.[hc]*"))),
        version,
        " ".join(_FLAGS),
        jaxlib.__version__,
        _cpu(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _cpu() -> str:
    """Describe the instructions of the CPU, for which the compiler optimizes."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kept)}))
