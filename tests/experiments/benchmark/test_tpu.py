"""Compiling for TPUs: the command, what it reads from a program, and real programs."""

import importlib.util
import json
import subprocess
import sys

import jax
import pytest

from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import hlo, tpu
from experiments.benchmark.program import abstract_parts
from mlti_jax.errors import InputError

# A program in the form of `Compiled.as_text()`, with numbers that are easy to add.
PROGRAM = """\
HloModule jit_run, is_scheduled=true

%fused_pool (p.1: f32[4,8]) -> f32[4,8] {
  %p.1 = f32[4,8]{1,0:T(8,128)} parameter(0)
  %broadcast.1 = f32[4,8]{1,0:T(8,128)} broadcast(%p.1), dimensions={0,1}
  ROOT %add.1 = f32[4,8]{1,0:T(8,128)} add(%broadcast.1, %p.1)
}

%fused_conv (p.2: f32[4,8]) -> bf16[16,128] {
  %p.2 = f32[4,8]{1,0:T(8,128)} parameter(0)
  ROOT %conv.1 = bf16[16,128]{1,0:T(8,128)(2,1)} convolution(%p.2, %p.2), \
feature_group_count=2
}

%draw_body (p.3: (s32[])) -> (s32[]) {
  %p.3 = (s32[]{:T(128)}) parameter(0)
  ROOT %sort.1 = (s32[]{:T(128)}) sort(%p.3), \
backend_config={"estimated_cycles":"7"}
}

%five (p.8: (s32[])) -> pred[] {
  %p.8 = (s32[]{:T(128)}) parameter(0)
  %bound.1 = s32[]{:T(128)} constant(5)
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.8), index=0
  ROOT %lt.2 = pred[]{:T(512)} compare(%i.1, %bound.1), direction=LT
}

%always (p.4: (s32[])) -> pred[] {
  %p.4 = (s32[]) parameter(0)
  ROOT %lt.1 = pred[]{:T(512)} compare(%p.4, %p.4), direction=LT
}

%branch_a (p.5: f32[4,8]) -> f32[4,8] {
  ROOT %copy.1 = f32[4,8]{1,0:T(8,128)} copy(%p.5), \
backend_config={"estimated_cycles":"30"}
}

%branch_b (p.6: f32[4,8]) -> f32[4,8] {
  ROOT %copy.2 = f32[4,8]{1,0:T(8,128)} copy(%p.6), \
backend_config={"estimated_cycles":"10"}
}

%step (p.7: (f32[4,8])) -> (f32[4,8]) {
  %p.7 = (f32[4,8]{1,0:T(8,128)}) parameter(0)
  %fusion.1 = f32[4,8]{1,0:T(8,128)} fusion(%p.7), kind=kLoop, calls=%fused_pool, \
metadata={op_name="jit(run)/max_pool"}, backend_config={"estimated_cycles":"100"}
  %fusion.2 = bf16[16,128]{1,0:T(8,128)(2,1)} fusion(%p.7), kind=kOutput, \
calls=%fused_conv, backend_config={"estimated_cycles":"50"}
  %while.2 = (s32[]{:T(128)}) while(%p.7), condition=%five, body=%draw_body, \
backend_config={"estimated_cycles":"999"}
  %while.3 = (s32[]{:T(128)}) while(%p.7), condition=%always, body=%draw_body
  %cond.1 = f32[4,8]{1,0:T(8,128)} conditional(%p.7, %p.7, %p.7), \
branch_computations={%branch_a, %branch_b}
  %all-reduce.1 = (f32[10]{0:T(128)}, f32[2,3]{1,0:T(8,128)}) all-reduce(%p.7, %p.7), \
to_apply=%always, backend_config={"estimated_cycles":"40"}
  %sort.2 = s32[4]{0:T(128)} sort(%p.7), dimensions={0}, to_apply=%always
  ROOT %tuple.1 = (f32[4,8]{1,0:T(8,128)}) tuple(%fusion.1)
}

ENTRY %main.1 (a.1: f32[4,8]) -> f32[4,8] {
  %a.1 = f32[4,8]{1,0:T(8,128)} parameter(0)
  %copy.3 = f32[4,8]{1,0:T(8,128)} copy(%a.1), \
backend_config={"estimated_cycles":"77"}
  %while.1 = (f32[4,8]{1,0:T(8,128)}) while(%a.1), condition=%always, body=%step
  ROOT %out.1 = f32[4,8]{1,0:T(8,128)} get-tuple-element(%while.1), index=0
}
"""


def test_cycles_are_added_by_kind():
    summary = hlo.summarize(PROGRAM)
    assert summary.cycles == {
        "broadcast": 100,
        "convolution, dot": 50,
        "sort": 5 * 7 + 7,  # a loop of known length and one of unknown length
        "collective": 40,
        "copy, reshape": (30 + 10) / 2,  # the mean of the branches
    }
    assert summary.total == 252
    assert summary.per_call == 77
    assert summary.open_loops == 1  # without the loop over steps
    assert summary.grouped == 1
    assert summary.without_estimate == {"sort": 1}
    assert summary.collectives == {"all-reduce": (1, 4 * (10 + 6))}
    share, kind, result, source = summary.worst[0]
    assert (kind, source) == ("broadcast", "jit(run)/max_pool")
    assert result.startswith("f32[4,8]")
    assert share == pytest.approx(100 / 252)


@pytest.mark.parametrize(
    ("result", "elements", "stored"),
    [
        ("f32[40,32]{1,0:T(8,128)}", 4 * 40 * 32, 4 * 40 * 128),
        ("f32[32,40]{0,1:T(8,128)}", 4 * 32 * 40, 4 * 128 * 40),
        ("f32[4,10,14,2,32]{4,3,2,1,0:T(2,128)}", 4 * 35840, 4 * 4 * 10 * 14 * 2 * 128),
        ("bf16[9,130]{1,0:T(8,128)(2,1)}", 2 * 9 * 130, 2 * 16 * 256),
        ("(s32[]{:T(128)}, pred[3]{0})", 4 + 3, 4 + 3),
    ],
)
def test_bytes_of_arrays_and_their_tiles(result, elements, stored):
    assert hlo.array_bytes(result) == (elements, stored)


def test_the_table_marks_what_stands_out():
    values = {
        "compile_s": 1.0,
        "memory": {"peak": 20e9, "arguments": 1e6, "temporary": 2e6},
        "cost": {"flops": 197e9, "bytes": 819e3},
        "peaks": tpu.CHIPS["v5e"]._asdict(),
        "summary": hlo.summarize(PROGRAM)._asdict(),
    }
    result = tpu._result("v5e:2x2", "some_case", 1, "float32", **values)
    result = json.loads(json.dumps(result))  # as it arrives from the other process
    assert tpu.roofline(result) == (pytest.approx(1e-3), "products")
    found = tpu.marks(result)
    assert found[0] == "does not fit into memory: 20.0 GB"
    assert "broadcast 40 %" in found
    assert "sort 17 %" in found
    assert "1 grouped convolutions" in found
    assert "1 loops of unknown length, counted once" in found
    assert len(tpu.header().removesuffix("  collectives")) == len(
        tpu.table(result).splitlines()[0].partition("  1 all-reduce")[0]
    )
    failed = tpu._result("v5e:2x2", "some_case", 4, "float32", error="no memory")
    assert tpu.table(failed).endswith("DOES NOT COMPILE: no memory")


# ------------------------------------------------------------------------ the command


def test_without_libtpu_the_command_names_the_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "libtpu" else find(name),
    )
    with pytest.raises(InputError, match=r"'libtpu'; pip install -e '.\[tpu_check\]'"):
        tpu.request("v5e:2x2", None, None, None)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("v5e", None, None, None), "--topology=v5e; expected a chip and a grid"),
        (("v5e:2x2", ["no_such"], None, None), "unknown case for TPUs 'no_such'"),
        (("v5e:2x2", None, ["0"], None), "--tpu_devices=0; expected numbers above 0"),
        (("v5e:2x2", None, None, ["int8"]), "unknown arithmetic 'int8'"),
    ],
)
def test_wrong_flags(arguments, match, monkeypatch):
    monkeypatch.setattr(tpu.extras, "package_file", lambda *_: None)
    with pytest.raises(InputError, match=match):
        tpu.request(*arguments)


def test_defaults_and_patterns(monkeypatch):
    monkeypatch.setattr(tpu.extras, "package_file", lambda *_: None)
    everything = tpu.request("v5e:2x2", None, None, None)
    assert everything.cases == tuple(tpu.all_cases())
    assert everything.devices == (1, 4)
    assert everything.arithmetics == ("float32", "bfloat16")
    some = tpu.request("v5e:2x2", ["maml_bio_*", "maml_bio_mlti"], ["4"], ["highest"])
    assert sorted(some.cases) == sorted(
        case for case in everything.cases if case.startswith("maml_bio_")
    )
    assert len(some.cases) > 5
    assert (some.devices, some.arithmetics) == ((4,), ("highest",))
    assert tpu.request("v5e:2x2", None, None, None, quick=True).cases == tpu.QUICK
    # Only if it is named: it needs libtpu, and takes hours.
    assert "tpu" not in benchmark.chosen(None)
    assert "tpu" not in benchmark.chosen(["*"])
    assert benchmark.chosen(["tpu"]) == ["tpu"]


def test_a_process_that_ends_is_a_row(monkeypatch):
    run = subprocess.Popen

    def ends(command, **options):
        program = "import sys; sys.stderr.write('F0000 no lockfile'); sys.exit(3)"
        return run([sys.executable, "-c", program], **options)

    monkeypatch.setattr(tpu.subprocess, "Popen", ends)
    wanted = tpu.Request("v5e:2x2", ("maml_bio_mlti",), (1, 4), ("float32",))
    (row,) = tpu.measure(wanted)
    assert (row["case"], row["devices"]) == ("maml_bio_mlti", 1)
    assert row["error"] == "the process ended: F0000 no lockfile"


# ------------------------------------------------------------------ compiled for TPUs


@pytest.mark.slow
def test_programs_compile_for_tpus():
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install -e '.[tpu_check]'")
    cases = ("maml_conv4_28_1q_mlti", "protonet_conv4_28_1q_mlti")
    results = list(tpu.measure(tpu.Request("v5e:2x2", cases, (4,), ("bfloat16",))))
    assert [result["case"] for result in results] == list(cases)
    for result in results:
        assert "error" not in result, result
        summary = hlo.Summary(**result["summary"])
        assert summary.total > 1e4
        assert summary.grouped == 0
        assert result["memory"]["peak"] < result["peaks"]["memory"]
        # One sum, in float32: of the gradient, the batch statistics, loss and metric.
        variables = abstract_parts(tpu.all_cases()[result["case"]]).state.variables
        leaves = jax.tree.leaves((variables.params, variables.state))
        size = 4 * (sum(leaf.size for leaf in leaves) + 2)
        assert summary.collectives == {"all-reduce": [1, size]}
