"""The command behind train_images.sh: train_lm's code with the YAMLs of images."""

from functools import partial

from pipeline.commands.training.train_images import parse
from pipeline.training import train as train_lm

main = partial(train_lm.main, "train_images.sh", parse)
