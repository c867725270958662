"""Vanilla and MLTI side by side, on real images that come with the install.

ProtoNet on RainbowMNIST, 10-way 1-shot: the paper's 16 training combinations of
colour, size and angle, tested on 10 others, with 8 images a class and combination
instead of 100. About 4 minutes on two CPU cores.

    python -m experiments.run --config=experiments/configs/quickstart.py \
        --workdir=/tmp/quickstart
"""

from experiments.configs import rainbow_mnist


def get_config():
    config = rainbow_mnist.get_config("learner=protonet")
    with config.unlocked():
        config.compare = ("vanilla", "mlti")
        config.strategy.name = ""
    config.dataset.source = "builtin"
    config.train.steps = 1500
    config.eval.every = 250
    config.eval.queries = 7
    return config
