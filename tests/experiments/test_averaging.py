"""The study of moving averages: what it measures, and its tables."""

import numpy as np
import pytest

from experiments import averaging
from mlti_jax._internal.storage import write_json
from mlti_jax.errors import InputError
from mlti_jax.training import build, train_and_evaluate
from tests.support.api_cases import class_splits, domain_splits, fit_small


@pytest.mark.slow
@pytest.mark.parametrize("validation", [True, False])
def test_one_training_gives_the_results_of_three_runs(
    validation, tmp_path, monkeypatch
):
    monkeypatch.setattr(averaging, "DECAYS", (0.5, 0.9))
    splits = class_splits() if validation else domain_splits()
    ways = 3 if validation else None
    config = fit_small(splits, ways=ways, **{"train.ema": 0.0}).config
    found = averaging.measure(build(config, splits=splits), 20, curve=(0.5, 1.0))
    assert list(found) == ["off", "0.5", "0.9"]
    for name, variant in found.items():
        changed = config.copy_and_resolve_references()
        changed.train.ema = 0.0 if name == "off" else float(name)
        result = train_and_evaluate(build(changed, splits=splits), tmp_path / name)
        assert variant["step"] == result["step"]
        np.testing.assert_allclose(variant["per_task"], result["per_task"], atol=1e-5)
        assert variant["mean"] == pytest.approx(np.mean(variant["per_task"]), abs=1e-5)
        assert list(variant["curve"]) == [10, 20]


def record(folder, training, values):
    variants = {
        name: {"per_task": list(each), "mean": float(np.mean(each)), "curve": {}}
        for name, each in zip(("off", "0.99", "0.999"), values, strict=True)
    }
    path = folder / f"{training.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path, {"name": training.name, "metric": "accuracy", "variants": variants}
    )


def test_differences_by_hand(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.random((2, 3, 50)).round(3)
    for seed in range(2):
        training = averaging.Training("nci", "maml", "mlti", seed)
        record(tmp_path, training, values[seed])
    (section,) = averaging.sections(averaging.read_results(tmp_path))
    ((method, seeds, off, _, cell),) = section.lines
    assert (section.title, method, seeds) == ("NCI, 5,000 steps", "maml, mlti", "2")
    assert off.startswith(f"{100 * values[:, 0].mean():.2f} ± ")
    gap = 100 * (values[:, 2] - values[:, 0])
    half = 1.96 * gap.mean(axis=0).std(ddof=1) / np.sqrt(50)
    spread = abs(gap[0].mean() - gap[1].mean()) / np.sqrt(2)
    assert cell == f"{gap.mean():+.2f} ± {half:.2f} ({spread:.2f})"


def test_deviations_over_seeds_by_hand(tmp_path):
    means = {"maml": ((0.5, 0.5, 0.5), (0.6, 0.54, 0.5)), "protonet": ((0.7,) * 3,) * 2}
    for learner, of_seeds in means.items():
        for seed, of_variants in enumerate(of_seeds):
            training = averaging.Training("nci", learner, "mlti", seed)
            record(tmp_path, training, [[m - 0.1, m + 0.1] for m in of_variants])
    single = averaging.Training("huffpost", "maml", "mlti", 0)
    record(tmp_path, single, [[0.5, 0.6]] * 3)  # one seed has no deviation
    section = averaging.seeds_section(averaging.read_results(tmp_path))
    # Two values at distance d have the variance d^2 / 2: .005, .0008; half of them.
    assert section.lines == (("NCI", "2", "5.00", "2.00", "0.00"),)


def test_trainings_and_their_commands():
    every = averaging.trainings([])
    assert len(every) == len(set(every)) == 6 * 2 * 2 * 3
    for training in (every[0], every[-1]):
        only = training.command.rpartition("--only=")[2].split(",")
        assert training in averaging.trainings(only)
    one = averaging.trainings(["nci_disjoint", "maml", "vanilla", "seed2"])
    assert [each.name for each in one] == ["nci_disjoint/maml-vanilla-seed2"]
    with pytest.raises(InputError, match="no run matches --only=xyz"):
        averaging.trainings(["xyz"])


def test_calls_end_at_all_evaluations():
    stops = list(averaging._stops(450, 200, {7, 450}))
    assert stops == [7, 100, 200, 300, 400, 450]
