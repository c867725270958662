"""Huffpost: 5-way 1- or 5-shot, the category of a headline (E.8).

Paper (with ALBERT), accuracy in %, 1 and 5 shots: MAML 39.51 and 50.68 vanilla, 41.06
and 52.53 MLTI; ProtoNet 41.85 and 58.98 vanilla, 42.74 and 61.09 MLTI.

    pip install -e '.[text]'
    python -m mlti_jax.data.prepare --dataset=huffpost --raw=DIR
    python -m experiments.run --workdir=/tmp/huffpost_maml_mlti \
        --config=experiments/configs/huffpost.py:learner=maml,strategy=mlti,shots=1

The encoder is a choice of the argument. `encoder=word_mean`, the default, is light: the
mean of wordllama's word vectors, for metric-based learners without batch-norm, which
is better on validation tasks; `encoder=bag_of_words` takes the 2,000 commonest words
of training; both with the learning rate of the other vector data. `encoder=albert` is
the paper's, with its learning rate, and needs the folder of a checkpoint:
`--config.backbone.albert.pretrained=DIR --config.dataset.tokenizer=DIR`.

One task a step, as in the paper; MLTI then draws a second one as its partner. Meta-Reg
needs weights that are shared and trained: with the light encoder, set
`--config.learner.maml.adapted_layers="(-1,)"`.
"""

from ml_collections.config_dict import placeholder

from experiments.config import paper_config
from mlti_jax._internal.checks import unknown_name
from mlti_jax.learners import FAMILIES

ENCODERS = ("word_mean", "bag_of_words", "albert")


def get_config(arg: str = ""):
    config, choice = paper_config(arg, shots=1, encoder="word_mean")
    config.dataset = {"name": "huffpost", "train_classes": 25}
    config.backbone.name = choice.encoder
    config.interpolation = {"method": "mixup", "layers": (1,)}
    if choice.encoder == "word_mean":
        config.dataset.update({"features": "wordllama", "max_tokens": 32})
        config.backbone.word_mean.norm = choice.learner not in FAMILIES["metric"]
    elif choice.encoder == "bag_of_words":
        config.dataset.update({"features": "bag_of_words", "vocabulary": 2000})
        config.backbone.name = "mlp"
        config.interpolation.layers = (0, 1)
    elif choice.encoder == "albert":
        config.dataset.update(
            {"features": "albert", "tokenizer": placeholder(str), "max_tokens": 32}
        )
        config.interpolation.layers = tuple(range(1, 14))
        config.train.learning_rate = 2e-5
    else:
        raise unknown_name("encoder", choice.encoder, ENCODERS)
    config.task.queries = 5
    config.train.steps = 10_000
    config.train.meta_batch_size = 1
    config.eval.queries = 5
    config.lock()
    return config
