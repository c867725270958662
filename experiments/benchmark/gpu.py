"""Training steps compiled for a GPU on a machine without one.

    python -m experiments.benchmark.gpu maml_conv4_28_1q_mlti protonet_conv4_28_1q_mlti

prints for each case of `experiments.benchmark.tpu.all_cases` the memory of its program
for an A100 and the library calls in it. It needs

    pip install -e '.[gpu_check]'

with the plugin in the version of the installed JAX, and `ptxas` on PATH, which is in
`nvidia/cuda_nvcc/bin` of the installed packages. Without a GPU, XLA cannot time
algorithms: autotuning is off, so the choice of algorithms is not that of a run, and no
time is estimated. Compiling for a GPU that is absent is not a public feature of JAX; a
later version may need changes here.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections import Counter

from experiments.benchmark.tpu import all_cases
from mlti_jax._internal import extras
from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError

# Properties of the hardware that XLA's compiler asks for.
A100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 167936
  threads_per_core_limit: 2048
  core_count: 108
  fpus_per_core: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 1555200000000
  l2_cache_size: 41943040
  clock_rate_ghz: 1.41
  device_memory_size: 42331013120
  shared_memory_per_block_optin: 166912
  cuda_compute_capability { major: 8 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA A100-SXM4-40GB"
"""
_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"


def library_calls(program: str) -> Counter[str]:
    """Count the calls of libraries in an optimized program, by target."""
    return Counter(re.findall(r'custom_call_target="([^"]+)"', program))


def main(names: list[str]) -> None:
    """Compile cases by name, and print a line for each."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
    extras.require("jax_plugins.xla_cuda12", "gpu_check")
    if shutil.which("ptxas") is None:
        raise InputError(
            "this needs ptxas on PATH: pip install -e '.[gpu_check]' and add the folder"
            " nvidia/cuda_nvcc/bin of the installed packages"
        )
    import jax
    from jax._src import xla_bridge
    from jax.experimental import topologies

    from experiments.benchmark.lowering import trace
    from experiments.benchmark.program import memory_of

    jax.config.update("jax_platforms", "cpu")  # There is no GPU to look for.
    jax.devices()  # JAX finds its plugins now.
    known = xla_bridge.canonicalize_platform

    def canonicalize(platform: str) -> str:
        return "cuda" if platform == "gpu" else known(platform)

    # JAX looks for an attached device to decide what "gpu" is.
    xla_bridge.canonicalize_platform = canonicalize
    described = topologies.get_topology_desc(
        platform="cuda", target_config=A100, topology="1x1x1"
    )
    cases = all_cases()
    for name in names:
        if name not in cases:
            raise unknown_name("case", name, cases)
        start = time.perf_counter()
        traced = trace(cases[name], described.devices[:1])
        compiled = traced.lower().compile()
        seconds = time.perf_counter() - start
        memory = ", ".join(
            f"{part} {size / 1e6:.1f} MB" for part, size in memory_of(compiled).items()
        )
        calls = ", ".join(
            f"{number} {target}"
            for target, number in library_calls(compiled.as_text()).most_common()
        )
        print(f"{name}: compiled in {seconds:.1f} s; {memory}; {calls}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
