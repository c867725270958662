r"""Huffpost: 5-way 1- or 5-shot, the category of a headline (E.8).

Accuracy in % with 1 and 5 shots, from the paper (with ALBERT):

                 vanilla           MLTI
    MAML       39.51  50.68    41.06  52.53
    ProtoNet   41.85  58.98    42.74  61.09

    pip install -e '.[text]'
    python -m mlti_jax.data.prepare --dataset=huffpost --raw=DIR
    python -m experiments.run --workdir=/tmp/huffpost_maml_mlti \
        --config=experiments/configs/huffpost.py:learner=maml,strategy=mlti,shots=1

The argument `encoder` selects the text encoder:

- `word_mean` (default): the mean of wordllama's word vectors, which is cheap; without
  batch-norm for metric-based learners, which is better on validation tasks.
- `bag_of_words`: the 2,000 most frequent words of the training headlines.
- `albert`: the paper's encoder, with its learning rate. Needs the folder of a
  checkpoint: `--config.backbone.albert.pretrained=DIR --config.dataset.tokenizer=DIR`.

A meta-batch has one task, as in the paper; MLTI then draws a second one as partner.
Meta-Reg needs shared weights that are trained: with the word-mean encoder, set
`--config.learner.maml.adapted_layers="(-1,)"`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import METRIC_BASED, parse_arg, set_alpha
from mlti_jax._internal.checks import unknown_name
from mlti_jax.training import base_config

ENCODERS = ("word_mean", "bag_of_words", "albert")


def get_config(arg: str = "") -> ConfigDict:
    choice = parse_arg(
        arg, learner="maml", strategy="mlti", shots=1, encoder="word_mean"
    )
    config = base_config()

    config.dataset = {
        "name": "huffpost",
        "train_classes": 25,
        "pool": "auto",  # device | host | stream: where the samples are
    }
    config.task.ways = 5
    config.task.shots = choice.shots
    config.task.queries = 5

    config.learner.name = choice.learner
    config.strategy.name = choice.strategy
    config.interpolation.method = "mixup"
    set_alpha(config, 2.0)

    config.train.steps = 10_000
    config.train.meta_batch_size = 1
    config.train.learning_rate = 1e-3

    config.eval.queries = 5
    config.eval.num_tasks = 600

    if choice.encoder == "word_mean":
        config.dataset.update({"features": "wordllama", "max_tokens": 32})
        config.backbone.name = "word_mean"
        config.backbone.word_mean.norm = choice.learner not in METRIC_BASED
        config.interpolation.layers = (1,)
    elif choice.encoder == "bag_of_words":
        config.dataset.update({"features": "bag_of_words", "vocabulary": 2000})
        config.backbone.name = "mlp"
        config.interpolation.layers = (0, 1)
    elif choice.encoder == "albert":
        config.dataset.update(
            {"features": "albert", "tokenizer": placeholder(str), "max_tokens": 32}
        )
        config.backbone.name = "albert"
        config.interpolation.layers = tuple(range(1, 14))
        config.train.learning_rate = 2e-5
    else:
        raise unknown_name("encoder", choice.encoder, ENCODERS)
    config.lock()
    return config
