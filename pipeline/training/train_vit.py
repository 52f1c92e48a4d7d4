"""The command behind train_vit.sh: train_lm's code with the YAMLs of Vision Transformers."""

from functools import partial

from pipeline.commands.training.train_vit import parse
from pipeline.training import train as train_lm

main = partial(train_lm.main, "train_vit.sh", parse)
