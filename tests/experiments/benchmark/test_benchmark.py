"""The benchmark's cases and tables at a small size; no test depends on timing."""

import json
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from absl import flags

from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import breakdown, memory, pools, scaling, steps, timing
from experiments.benchmark.cases import (
    ALL_CASES,
    BIO,
    CELL,
    NETWORKS,
    QUICK,
    RAINBOW,
    make_learner,
    make_pool,
    make_strategy,
)
from experiments.benchmark.flops import conv4_flops, step_flops
from experiments.benchmark.program import compile_case
from experiments.benchmark.torch import sides as torch_sides
from mlti_jax.errors import InputError
from tests.support.small_cases import shrink

PEAKS = {"gflops": 100.0, "gb_s": 10.0, "others": None}


def assert_drawn(path):
    image = matplotlib.image.imread(path)
    assert min(image.shape[:2]) > 100
    assert image[..., :3].std() > 0.05


# ----------------------------------------------------------------------- the cases


def test_names_of_cases():
    names = benchmark.chosen(None)
    for name in ("maml_conv4_28_1q_mlti", "matchingnet_bio_vanilla", "maml_pose_mlti"):
        assert name in names
    assert {"learners_28", "sampling", "account", "memory", "scaling"} < set(names)
    assert names[-1] == "account"  # uses the cases that were timed before
    assert benchmark.chosen(None, quick=True) == list(QUICK)
    assert len(QUICK) == 8
    assert set(QUICK) < set(ALL_CASES)
    assert benchmark.chosen(["maml_bio_*", "sampling", "maml_bio_mlti"]) == [
        "maml_bio_vanilla",
        "maml_bio_mlti",
        "sampling",
    ]
    with pytest.raises(InputError, match="unknown case 'learners_29'.*learners_28"):
        benchmark.chosen(["maml_bio_mlti", "learners_29"])


@pytest.mark.parametrize("name", ALL_CASES)
def test_every_case_can_be_built(name):
    case = ALL_CASES[name]
    assert name.startswith(case.learner)
    strategy = make_strategy(case, make_learner(case))
    assert strategy.name == name.rpartition("_")[2]
    assert strategy.layers == case.layers
    # The full pool of a case may take hundreds of megabytes.
    for some in (shrink(case), replace(case, image_shape=(1,))):
        x, index = make_pool(some)
        assert x.shape[1:] == some.image_shape
        assert index.max() == len(x) - 1
        assert index.shape[-2] >= some.ways
        assert index.shape[-1] >= some.shots + some.queries


def test_cell_case_matches_its_config():
    from experiments.configs import tabula_muris

    config = tabula_muris.get_config()
    assert CELL.interpolation == config.interpolation.method
    assert CELL.layers == tuple(config.interpolation.layers)
    own = {"hidden": CELL.hidden, "slope": CELL.slope, "dropout": CELL.dropout}
    assert own == config.backbone.mlp.to_dict()
    assert (CELL.ways, CELL.shots) == (config.task.ways, config.task.shots)
    assert make_pool(shrink(CELL))[0].dtype == "float32"


# ------------------------------------------------------------------- timing, flags


def test_slow_steps_are_repeated_less_often(monkeypatch):
    clock = 0.0
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)

    def side(step_s):
        def steps(count):
            nonlocal clock
            clock += count * step_s

        return steps

    times = timing.time_sides({"a": side(4.0), "b": side(0.01)}, 7, 10.0)
    assert times == {"a": pytest.approx([4000] * 3), "b": pytest.approx([10] * 3)}
    assert clock < 3 * 5 + 5
    times = timing.time_sides({"a": side(0.1), "b": side(0.01)}, 7, 7.0)
    assert {name: len(values) for name, values in times.items()} == {"a": 7, "b": 7}
    assert len(timing.time_sides({"a": side(4.0)}, 1, 1.0)["a"]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds=0"],
        ["--seconds=0"],
        ["--sides=torch_fast"],
        ["--cases=no_such"],
        ["--account_cases=no_such"],
    ],
)
def test_bad_arguments_raise(arguments):
    saved = {name: flags.FLAGS[name].value for name in ("cases", "account_cases")}
    try:
        flags.FLAGS(["benchmark", *arguments])
        with pytest.raises(InputError):
            benchmark.main()
    finally:
        for name in ("rounds", "seconds", "sides"):
            flags.FLAGS[name].value = None
        for name, value in saved.items():
            flags.FLAGS[name].value = value


# --------------------------------------------------------------------- PyTorch sides


def test_growth_measures_the_peak():
    size = 64 * 2**20

    def run():
        for _ in range(3):  # each is freed before the next
            bytearray(size)

    grown = torch_sides.growth_while(run)
    assert 0.9 * size < grown < 1.5 * size


def test_reason_for_a_side_that_is_not_implemented(monkeypatch):
    def make_step(case, side):
        if side == "torch_vmap":
            raise NotImplementedError("no rule for this")
        return lambda: time.sleep({"torch": 0.2, "torch_compile": 0.1}[side])

    monkeypatch.setattr(torch_sides, "make_step", make_step)
    monkeypatch.setattr(torch_sides.importlib.util, "find_spec", lambda name: 1)
    result = steps.measure_case("bio", shrink(BIO), 1, 0.01)
    # Features have no channels.
    assert sorted(result["time"]) == ["jax", "torch", "torch_compile"]
    assert result["refused"] == {"torch_vmap": "no rule for this"}
    assert result["fastest"] == "torch_compile"
    assert f" compiled {result['ratio']['torch_compile']:.2f} " in steps.table(result)
    assert steps.table(result).endswith("no torch_vmap: no rule for this")
    sides, _ = torch_sides.make_sides(RAINBOW, ("torch_channels_last",))
    assert list(sides) == ["torch_channels_last"]


@pytest.mark.parity
@pytest.mark.parametrize(
    "name",
    [
        "protonet_conv4_28_1q_mlti",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "maml_conv4_84_5s_vanilla",
                "maml_cell_mlti",
                "maml_pose_mlti",
                "protonet_resnet12_28_1q_mlti",
                "meta_curvature_bio_mlti",
            )
        ),
    ],
)
def test_all_sides_of_a_case_are_timed(name):
    pytest.importorskip("torch")
    case = shrink(ALL_CASES[name])
    # Compilation takes long, and has its own tests.
    result = steps.measure_case(name, case, 1, 0.01, torch_sides.SIDES[:3])
    sides = set(torch_sides.SIDES[:3])
    sides -= {"torch_channels_last"} if case.backbone == "mlp" else set()
    assert set(result["ratio"]) | set(result["refused"]) == sides
    for side, ratio in result["ratio"].items():
        medians = [result["time"][name]["median_ms"] for name in (side, "jax")]
        assert ratio == pytest.approx(medians[0] / medians[1])
    assert result["ratio"][result["fastest"]] == min(result["ratio"].values())
    json.dumps(result)


@pytest.mark.slow
@pytest.mark.parity
def test_memory_of_pytorch_is_measured_in_a_separate_process():
    pytest.importorskip("torch")
    assert torch_sides.resident_growth("protonet_bio_vanilla", "torch") > 1e6
    with pytest.raises(InputError, match="unknown side"):
        torch_sides.resident_growth("protonet_bio_vanilla", "jax")


# -------------------------------------------------------------------- tables, plots


@pytest.mark.slow
def test_results_and_chart_are_written(tmp_path):
    results = []
    for number, name in enumerate(("protonet_bio_vanilla", "protonet_bio_mlti")):
        case = shrink(ALL_CASES[name])
        result = steps.measure_case(name, case, 1, 0.01, ("torch",))
        result["ratio"] = {"torch": 2.0 + number, "torch_vmap": 0.5}
        result["fastest"] = "torch_vmap"
        results.append(result)
    benchmark.write(results, tmp_path / "new")
    written = json.loads((tmp_path / "new" / "results.json").read_text())
    assert [row["case"] for row in written["results"]] == [r["case"] for r in results]
    assert written["machine"]["platform"]
    assert_drawn(tmp_path / "new" / "ratios.png")
    # Of the two forms of a step, the slower is selected.
    results[0]["time"]["jax"]["median_ms"] = 1e9
    assert breakdown.slowest(results) == ("protonet_bio_vanilla",)


def test_operations_by_hand():
    # By hand: 28 * 28 * 27 * 32 * 2, 14 * 14 * 288 * 32 * 2, ...
    assert conv4_flops(RAINBOW) == [1354752, 3612672, 903168, 165888]
    # 4 tasks of 160 images; the first block needs no input gradient.
    protonet = replace(RAINBOW, learner="protonet", queries=15)
    others = 3612672 + 903168 + 165888
    assert step_flops(protonet) == 640 * (2 * 1354752 + 3 * others)
    # One inner step on 2 support samples, then 2 queries: the first layer is shared,
    # the second adapted, and so is the head.
    maml = replace(shrink(BIO), tasks=1, ways=2, shots=1, queries=1)
    layers = (2 * 8 * 4, 2 * 4 * 3, 2 * 3 * 2)
    expected = 2 * 4 * layers[0] + (2 * 6 + 2 * 3) * layers[1] + (2 * 9 + 2 * 3) * 12
    assert step_flops(maml) == expected


def plain_maml(kernels, x, steps=2):
    """Textbook MAML loss of one task; the first layer is not adapted."""
    first, *adapted = kernels
    support, query = (jnp.tanh(part @ first) for part in jnp.split(x, 2))

    def loss(adapted, h):
        return jnp.sum(jnp.tanh(h @ adapted[0]) @ adapted[1])

    for _ in range(steps):
        gradient = jax.grad(loss)(adapted, support)
        adapted = jax.tree.map(jnp.subtract, adapted, gradient)
    return loss(adapted, query) ** 2


def test_operations_by_hand_equal_the_count_of_xla():
    protonet = replace(BIO, learner="protonet", hidden=(100, 90), pool=(2, 2, 15))
    protonet = replace(protonet, interpolation=None, layers=(0,))
    counted = compile_case(protonet).cost["flops"]
    # XLA counts more than the products.
    assert step_flops(protonet) < counted < 1.2 * step_flops(protonet)

    maml = replace(protonet, learner="maml", tasks=1, shots=5, queries=5, inner_steps=2)
    kernels = [jnp.ones(shape) for shape in ((1024, 100), (100, 90), (90, 2))]
    gradient = jax.jit(jax.grad(plain_maml)).lower(kernels, jnp.ones((20, 1024)))
    counted = gradient.compile().cost_analysis()["flops"]
    assert counted == pytest.approx(step_flops(maml), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maml_bio_mlti", "protonet_bio_vanilla"])
def test_breakdown_has_all_parts(name, tmp_path):
    account = breakdown.measure_case(name, shrink(ALL_CASES[name]), PEAKS, 1, 0.01)
    assert set(account["parts"]) == {*breakdown.PARTS, "dispatch"}
    step = account["programs"]["step"]["median_ms"]
    parts = [account["parts"][part] for part in breakdown.PARTS]
    assert sum(parts) == pytest.approx(step)
    limit = account["limit"]
    assert limit["gflops"] == pytest.approx(limit["gflop_by_hand"] / step * 1e3)
    assert limit["share_of_peak"] == pytest.approx(limit["gflops"] / 100)
    lines = breakdown.table(account).splitlines()
    assert len(lines) == 3 + len(parts) + 1
    benchmark.write([account], tmp_path)
    assert_drawn(tmp_path / "account.png")


@pytest.mark.slow
def test_memory_has_a_row_for_every_combination(tmp_path):
    case = replace(shrink(BIO), interpolation=None, shots=5, hidden=(4, 50))
    result = memory.measure_cases({"bio": case}, (2,), (1, 20))
    assert len(result["rows"]) == 2 * len(memory.FORMS)
    growth = {row["form"]: row["bytes_per_inner_step"] for row in result["growth"]}
    assert growth["plain"] > growth["remat"] >= 0
    rows = len(memory.FORMS)
    assert len(memory.table(result).splitlines()) == 2 + rows
    benchmark.write([result], tmp_path)
    assert_drawn(tmp_path / "memory.png")


@pytest.mark.slow
def test_scaling_has_a_row_for_every_size(tmp_path):
    learners = {
        "protonet": {"tasks": (2, 4), "pool": (1, 3)},
        "maml": {"inner_steps": (1,), "image side": (8,)},
    }
    case = shrink(ALL_CASES["protonet_bio_vanilla"])
    result = scaling.measure_cases({"bio": case}, learners, 1, 0.01)
    rows = {(row["varied"], row["size"]): row for row in result["rows"]}
    # Features have no sides.
    assert set(rows) == {
        ("tasks", 2),
        ("tasks", 4),
        ("pool", 1),
        ("pool", 3),
        ("inner_steps", 1),
    }
    pools = [rows["pool", size]["memory"]["arguments"] for size in (1, 3)]
    samples, features = 3 * 2 * 6, 8
    index = 4 * samples  # int32; features are bytes
    assert pools[1] - pools[0] == pytest.approx(2 * samples * features + 2 * index)
    assert [row["varied"] for row in result["growth"]] == [
        "tasks",
        "pool",
        "inner_steps",
    ]
    assert len(scaling.table(result).splitlines()) == 2 + 5 + 1 + 3
    benchmark.write([result], tmp_path)
    assert_drawn(tmp_path / "scaling.png")


@pytest.mark.parametrize("network", ["conv4_28_1q", "bio"])
@pytest.mark.parametrize("varied", scaling.SIZES)
def test_sizes_that_are_varied(network, varied):
    case = NETWORKS[network]
    if varied == "image side" and network == "bio":
        return
    cases = [scaling.RESIZE[varied](case, size) for size in scaling.SIZES[varied]]
    for resized, size in zip(cases, scaling.SIZES[varied], strict=True):
        groups, samples = resized.pool[-2:]
        assert resized.ways <= groups
        assert resized.shots + resized.queries <= samples
        # No pool takes more than a gigabyte.
        assert np.prod(resized.pool) * np.prod(resized.image_shape) < 1e9
        assert size in (
            resized.tasks,
            resized.ways,
            resized.shots,
            resized.inner_steps,
            resized.image_shape[0],
            resized.pool[0],
            resized.pool[-1] // case.pool[-1],
        )
    work = [scaling.work(resized, varied) for resized in cases]
    if varied in ("pool", "classes"):
        assert work == [1.0] * len(cases)
    else:
        assert work == sorted(set(work))


def test_work_of_a_step_by_hand():
    case = replace(NETWORKS["bio"], tasks=3, ways=2, shots=4, queries=1)
    assert scaling.work(case, "tasks") == 3 * 2 * 5 * 1024
    images = replace(NETWORKS["conv4_28_1q"], image_shape=(10, 20, 3))
    assert scaling.work(images, "shots") == 4 * 20 * 600


def test_growth_is_the_slope_of_the_time():
    def rows(work, times):
        return [
            {"size": 10**number, "work": w, "time": {"median_ms": ms}}
            for number, (w, ms) in enumerate(zip(work, times, strict=True))
        ]

    square = scaling.exponents(rows((1.0, 2.0, 4.0), (3.0, 12.0, 48.0)))
    assert square == {"exponent": pytest.approx(2), "last": pytest.approx(2)}
    # With a fixed cost, only the last two sizes show linear growth.
    later = scaling.exponents(rows((1.0, 2.0, 4.0), (5.0, 5.0, 10.0)))
    assert later == {"exponent": pytest.approx(0.5), "last": pytest.approx(1)}
    # Against the size if the work is constant.
    pool = scaling.exponents(rows((1.0, 1.0, 1.0), (7.0, 7.0, 70.0)))
    assert pool == {"exponent": pytest.approx(0.5), "last": pytest.approx(1)}
    assert scaling.exponents(rows((1.0,), (1.0,)))["exponent"] is None


# --------------------------------------------------------------------------- pools


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["uint8", "jpeg"])
def test_pools_are_timed_and_streams_decode_their_images(encoding, tmp_path):
    case = replace(benchmark.find("protonet_conv4_84_1s_mlti"), pool=(5, 20))
    records = pools.write_records(tmp_path, case, encoding, copies=3)
    assert records.shape == (3 * 5 * 20, 84, 84, 3)
    images = records[np.array([7, 107, 207])]  # the same one, in each of the links
    assert images.std() > 10
    np.testing.assert_array_equal(images[0], images[1])
    np.testing.assert_array_equal(images[0], images[2])


def test_table_of_pools():
    rates = {"device": 4.0, "host": 4.0, "stream": 3.0}
    result = {
        "images": "synthetic",
        "rows": [{**pools.ROWS[0]._asdict(), "steps_per_second": rates}],
        "memory": [{"kind": "host", "factor": 10, "samples_mb": 8.0, "peak_mb": 300.0}],
        "others": None,
    }
    lines = pools.table(result).splitlines()
    assert "3.00 ( 0.75)" in lines[2]
    assert lines[-1].split() == ["host", "x10", "samples", "8.0", "peak", "300.0"]
