"""Flags and fields of `experiments.run` that must be refused."""

from __future__ import annotations

import jax
import pytest

from experiments import run
from tests.support.hostile import (
    CONFIG,
    MOST,
    RAINBOW,
    Row,
    file_in,
    params,
    run_args,
)

# ------------------------------------------------------------- experiments.run: flags


def field(name, value, message, *more, argument="learner=maml"):
    """A row that sets a field of the config."""
    args = run_args(f"--config.{name}={value}", *more, argument=argument)
    shown = str(value).replace("\n", "newline")[:20]
    return Row(f"{name}={shown}", message, args)


def argument(text, message):
    """A row with an argument of the config file."""
    return Row(f"argument:{text}", message, run_args(argument=text))


BIG = 10**12
FLAGS = [
    argument("learner=maml,learner=protonet", "learner is given twice"),
    argument("strategy=mlti+", "strategy 'mlti.' has an empty member"),
    field("train.meta_batch_size", BIG, "meta_batch_size"),
    field("train.steps", 0, "train.steps must be positive, got 0"),
    Row("workdir-empty", "--workdir is missing", run_args("--workdir=")),
    Row("config-missing", "--config is missing", ("--workdir={tmp}/work",)),
    Row("config-empty", "config", ("--config=", "--workdir={tmp}/work")),
    argument("learner=", "learner is empty"),
    argument("learner=maml,", "'' is not of the form name=value"),
    argument(",learner=maml", "'' is not of the form name=value"),
    argument("learner=maml,,shots=1", "'' is not of the form name=value"),
    argument("learner", "'learner' is not of the form name=value"),
    argument("learner=MAML", "unknown learner 'MAML'"),
    argument("lerner=maml", "unknown config argument 'lerner'"),
    argument("shots=1.5", "shots must be of type int, got '1.5'"),
    argument("strategy=mlti+mlti", "mlti.*twice"),
    argument("strategy=+mlti", "strategy '.mlti' has an empty member"),
    argument("strategy=none", "unknown strategy 'none'"),
    argument("strategy=mlti+none", "unknown strategy 'none'"),
    argument("learner=protonet,strategy=taml", "taml does not apply to.*protonet"),
    Row("flag-unknown", "unknown flag --nonsense", run_args("--nonsense=1")),
    Row("flag-without-value", "workdir", (f"--config={CONFIG}", "--workdir")),
    Row("argument-unexpected", "unexpected argument 'x'", run_args("x")),
    Row("argument-dashes", "unexpected argument|unknown", run_args("--", "-x")),
    Row("field-empty", "unknown config field ''", run_args("--config.=1")),
    Row(
        "section",
        "train",
        (f"--config={CONFIG}", "--config.train=1", "--workdir={tmp}/work"),
    ),
    Row(
        "data_dir-file",
        "data directory .*file is a file",
        (RAINBOW, "--workdir={tmp}/work", "--data_dir={tmp}/file"),
        file_in("file"),
    ),
    Row(
        "data_dir-in-a-file",
        "data directory .*file/in is in .*file, which is a file",
        (RAINBOW, "--workdir={tmp}/work", "--data_dir={tmp}/file/in"),
        file_in("file"),
    ),
    field("compilation_cache", "", "compilation_cache is ''; expected user, off"),
    field("compilation_cache", "beside", "compilation_cache is 'beside'; expected"),
    # Fields that do not exist, and values of another type.
    field("train.stepz", 3, "unknown config field 'train.stepz'.*meta_batch_size"),
    field("trian.steps", 3, "unknown config field 'trian.steps'.*train"),
    field("train.steps.x", 3, "unknown config field 'train.steps.x'"),
    field("train.steps", "many", "train.steps"),
    field("train.steps", "1.5", "train.steps"),
    field("train.steps", "", "train.steps"),
    field("train.learning_rate", "fast", "train.learning_rate"),
    field("learner.maml.second_order", "perhaps", "second_order"),
    field("backbone.mlp.hidden", "(4", r"hidden=\('\(4',\)"),
    field("backbone.mlp.hidden", "(4,", "backbone.mlp.hidden"),
    field("backbone.mlp.hidden", "(1.5,)", "hidden"),
    field("backbone.mlp.hidden", "((4,),)", "hidden"),
    field("learner.maml.adapted_layers", "('a',)", "adapted_layers"),
    field("learner.maml.adapted_layers", "(1.0,)", "adapted_layers"),
    field(
        "interpolation.layers",
        "('a',)",
        "layers",
        "--config.interpolation.method=mixup",
    ),
    field("backbone.mlp.hidden", "('a',)", "hidden"),
    field("backbone.mlp.hidden", "()", "hidden"),
    field("backbone.mlp.hidden", "(0,)", "hidden"),
    field("backbone.mlp.hidden", "(-4,4)", "hidden"),
    field("backbone.name", "mlp\n", r"unknown backbone 'mlp\\n'"),
    field("learner.name", "ma\nml", r"unknown learner 'ma\\nml'"),
    field("dataset.test", "0.2\n,7", "test has the unknown task"),
    # Sizes that no machine has.
    field("train.meta_batch_size", MOST, "memory.*lower.*meta_batch_size"),
    field("train.steps", 10**30, "train.steps must be at most"),
    field("backbone.mlp.hidden", f"({MOST},)", "needs at least .* GB of memory"),
    field("backbone.mlp.hidden", f"({10**30},)", "hidden must be at most"),
    field("backbone.mlp.hidden", f"({'4,' * 20_000})", "20000 layers is too deep"),
    field("eval.num_tasks", 10**15, "eval.num_tasks"),
    field("eval.validation_tasks", 10**15, "eval.validation_tasks"),
    field("eval.tasks_per_pass", 10**15, "eval.tasks_per_pass"),
    field("learner.maml.steps", 10**9, "steps of maml is 1000000000"),
    field("learner.maml.eval_steps", 10**9, "eval_steps.*1000000000"),
    field(
        "strategy.maxup.versions", 10**9, "versions|memory", argument="strategy=maxup"
    ),
    field(
        "strategy.metadropout.samples",
        10**9,
        "samples|memory",
        argument="strategy=metadropout",
    ),
    # Numbers out of range.
    field("train.steps", -1, "train.steps must be positive, got -1"),
    field("train.meta_batch_size", 0, "train.meta_batch_size must be positive"),
    field("train.meta_batch_size", -4, "train.meta_batch_size must be positive"),
    field("train.learning_rate", 0.0, "train.learning_rate must be positive"),
    field("train.learning_rate", -0.1, "train.learning_rate must be positive"),
    field("train.learning_rate", "nan", "train.learning_rate must be finite"),
    field("train.learning_rate", "inf", "train.learning_rate must be finite"),
    field("train.log_every", 0, "train.log_every must be positive"),
    field("train.checkpoint_every", -1, "train.checkpoint_every must be positive"),
    field("train.devices", 0, "train.devices"),
    field("train.devices", 10**6, "train.devices"),
    field("train.tasks_per_pass", 0, "tasks_per_pass must be 1 or more, got 0"),
    field("train.compute_dtype", "int8", "compute_dtype"),
    field("train.compute_dtype", "", "compute_dtype"),
    field("eval.every", 0, "eval.every must be positive"),
    field("eval.num_tasks", 0, "eval.num_tasks is 0; expected an integer from 2"),
    field("eval.num_tasks", -5, "eval.num_tasks is -5; expected an integer from 2"),
    field("eval.validation_tasks", 1, "eval.validation_tasks is 1; expected"),
    field("eval.tasks_per_pass", 0, "eval.tasks_per_pass must be positive"),
    field("eval.queries", 0, "queries"),
    field("eval.queries", -1, "queries"),
    field("eval.seed", -1, "eval.seed must be from 0"),
    field("seed", -1, "config.seed must be from 0"),
    field("seed", 2**32, "config.seed must be at most 4294967295"),
    field("task.ways", 1, "ways"),
    field("task.ways", 0, "ways"),
    field("task.ways", 10**9, "ways"),
    field("task.shots", 6, "6 samples, but shots=6 and queries=1"),
    field("task.shots", 0, "shots"),
    field("task.queries", 6, "6 samples, but shots=1 and queries=6"),
    field("task.queries", 0, "queries"),
    field("task.queries", -1, "queries"),
    field("task.queries", 10**12, "queries"),
    field("eval.queries", 99, "queries=99"),
    field("backbone.mlp.dropout", 1.0, "dropout"),
    field("backbone.mlp.dropout", -0.1, "dropout"),
    field("backbone.mlp.dropout", "nan", "dropout must be finite"),
    field("backbone.mlp.slope", "inf", "slope must be finite"),
    field("learner.maml.steps", -1, "steps of maml is -1"),
    field("learner.maml.inner_learning_rate", "nan", "inner_learning_rate must be"),
    field("learner.maml.inner_learning_rate", -1.0, "inner_learning_rate"),
    field("learner.maml.adapted_layers", "(9,)", "adapted_layers"),
    field("learner.maml.adapted_layers", "()", "adapted_layers"),
    field("learner.maml.norm", "layer", "batch-norm policy.*layer"),
    field("learner.matchingnet.scale", 0.0, "scale", argument="learner=matchingnet"),
    field("learner.matchingnet.scale", -1.0, "scale", argument="learner=matchingnet"),
    field("learner.matchingnet.distance", "far", "far", argument="learner=matchingnet"),
    field("learner.protonet.distance", "far", "far", argument="learner=protonet"),
    field("strategy.mlti.alpha", 0.0, "alpha must be positive"),
    field("strategy.mlti.alpha", -2.0, "alpha must be positive"),
    field("strategy.mlti.alpha", "nan", "alpha must be finite"),
    field("strategy.mlti.alpha_intra", 0.0, "alpha_intra|alpha must be positive"),
    field("strategy.mlti.within", "none", "within"),
    field("strategy.maxup.versions", 0, "versions", argument="strategy=maxup"),
    field("strategy.maxup.sets", "none", "sets", argument="strategy=maxup"),
    field("strategy.metadropout.noise", -1.0, "noise", argument="strategy=metadropout"),
    field(
        "strategy.metadropout.samples", 0, "samples", argument="strategy=metadropout"
    ),
    field("strategy.metareg.beta", -1.0, "beta", argument="strategy=metareg"),
    field("strategy.taml.weight", -1.0, "weight", argument="strategy=taml"),
    field("strategy.taml.measure", "none", "measure", argument="strategy=taml"),
    field("interpolation.method", "blend", "unknown mixing method 'blend'"),
    field(
        "interpolation.layers", "(9,)", "layer", "--config.interpolation.method=mixup"
    ),
    field(
        "interpolation.layers", "(-1,)", "layer", "--config.interpolation.method=mixup"
    ),
    field("interpolation.layers", "()", "layer", "--config.interpolation.method=mixup"),
    field(
        "interpolation.method",
        "cutmix",
        "cutmix.*images",
        "--config.interpolation.layers=(0,)",
    ),
    # Data options.
    field("dataset.name", "mnst", "unknown dataset 'mnst'"),
    field("dataset.name", "", "dataset"),
    field("dataset.seed", -1, "seed is -1; expected a non-negative integer"),
    field("dataset.test", "1.5", "test has the unknown task '1.5'"),
    field("dataset.test", "", "no test tasks"),
    field("dataset.test", "0,1,2,3,4", "leaves 0 for training"),
    field("dataset.test", "1,1", "test has the task '1' twice"),
    field("dataset.validation", "3", "both", "--config.dataset.test=3"),
    field("dataset.setting", "shared", "unknown setting 'shared'"),
    field("dataset.label", "y", "label is set, but .*npz file and has no such option"),
    field("dataset.path", "", "own_data needs the path"),
    field("dataset.path", "nowhere.npz", "nowhere.npz does not exist"),
    field("dataset.path", "/dev/null", "/dev/null is a device"),
    field("dataset.path", "a" * 300 + ".npz", "too long|does not exist"),
]
IMAGES = [
    Row(
        f"conv4.{name}={value}",
        message,
        (
            *(RAINBOW, "--config.dataset.source=builtin", "--workdir={tmp}/work"),
            f"--config.backbone.conv4.{name}={value}",
        ),
    )
    for name, value, message in (
        ("filters", MOST, "needs at least .* GB of memory"),
        ("filters", -1, "filters and blocks >= 1"),
        ("blocks", 10**9, "1000000000 layers is too deep"),
        ("blocks", 0, "filters and blocks >= 1"),
    )
]


@pytest.fixture
def no_cache():
    """Set no folder for compiled programs; the tests have one."""
    name = "jax_compilation_cache_dir"
    before = jax.config.values[name]
    jax.config.update(name, None)
    yield
    jax.config.update(name, before)


CACHES = [
    Row("nowhere", "compilation_cache=/proc/x/y cannot be created", ("/proc/x/y",)),
    Row("file", "compilation_cache=.*cannot be created", ("{tmp}/x",), file_in("x")),
    Row("in-a-file", "cannot be created", ("{tmp}/x/y",), file_in("x")),
    Row("long-name", "cannot be created", ("{tmp}/" + "a" * 300,)),
]


@pytest.mark.parametrize("row", params(CACHES))
def test_compilation_cache(row, refuse, no_cache):
    (path,) = row.args
    refuse(run, row._replace(args=run_args(f"--config.compilation_cache={path}")))


@pytest.mark.parametrize("row", params(FLAGS, quick=6) + params(IMAGES))
def test_flags_of_run(row, refuse):
    refuse(run, row)
