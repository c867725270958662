"""The projection: bytes of a compiled step, and the model of the network."""

import dataclasses

import jax
import pytest

from experiments.benchmark import projection
from experiments.benchmark.cases import NETWORKS
from experiments.benchmark.program import make_parts
from experiments.benchmark.projection import Network

ROW = {
    "case": "some",
    "time": {"rounds": 3, "median_ms": 2.0, "min_ms": 1.0, "max_ms": 3.0},
    "parameters": 4000,
    "exchanged": {"all-reduce": 4000},
}


def test_the_model_by_hand():
    network = Network(bandwidth=1e6, latency=1e-3)
    # 4 devices send 3 parts of 1000 bytes twice, in 6 messages.
    seconds = projection.exchange_seconds(4000, 4, network)
    assert seconds == pytest.approx(6 * 1000 / 1e6 + 6 * 1e-3)
    assert projection.efficiency(0.036, 4000, 4, network) == pytest.approx(0.75)
    assert projection.exchange_seconds(4000, 1, network) == 0


def test_bytes_of_xla_text():
    text = """
  %x = f32[10,4]{1,0} all-reduce(f32[10,4]{1,0} %p), replica_groups={{0,1}}
  %y = (bf16[3]{0}, s32[]) all-gather-start(bf16[3]{0} %q, s32[] %r), dimensions={0}
  %z = f32[99]{0} add(f32[99]{0} %all-reduce.1, f32[99]{0} %b)
  %w = f64[2]{0} all-reduce(f64[2]{0} %x), to_apply=%sum
"""
    found = projection.collective_bytes(text)
    assert found == {"all-reduce": 160 + 16, "all-gather": 10}


def test_a_faster_device_waits_longer():
    found = projection.project(ROW)
    slow, fast = (found[str(speed)] for speed in projection.SPEEDS)
    for name in projection.NETWORK_KINDS:
        shares = [slow[name][str(n)] for n in projection.DEVICES]
        assert shares == sorted(shares, reverse=True)
        assert all(fast[name][str(n)] < slow[name][str(n)] for n in projection.DEVICES)
    result = {"rows": [{**ROW, "efficiency": found}], "others": 0.0}
    text = projection.table(result)
    assert text.count("Ethernet") == len(projection.SPEEDS)
    value = slow["10 Gbit Ethernet"]["512"]
    assert f"{100 * value:.1f} %" in text


@pytest.mark.slow
def test_a_step_sums_little_more_than_its_parameters():
    case = dataclasses.replace(
        NETWORKS["bio"], hidden=(8, 8), layers=(0,), tasks=2, inner_steps=1
    )
    found = projection.exchanged(case)
    assert set(found) == {"all-reduce"}
    variables = make_parts(case).state.variables
    summed = (variables.params, variables.state)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(summed))
    # Also the loss and the metric.
    assert size < found["all-reduce"] <= size + 8
