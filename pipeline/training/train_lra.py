"""The command behind train_lra.sh: train_lm's code with the presets of Long Range Arena."""

from functools import partial

from pipeline.commands.training.train_lra import parse
from pipeline.training import train as train_lm

main = partial(train_lm.main, "train_lra.sh", parse)
