"""The command behind pretrain_roberta.sh: train_lm's code with the configurations of encoders."""

from functools import partial

from pipeline.commands.training.pretrain_roberta import parse
from pipeline.training import train as train_lm

main = partial(train_lm.main, "pretrain_roberta.sh", parse)
