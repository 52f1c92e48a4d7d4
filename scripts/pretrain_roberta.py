"""The command behind pretrain_roberta.sh: train_lm's code with the configurations of encoders."""

from functools import partial

from scripts.command import run_command
from scripts.train_lm import main

if __name__ == "__main__":
    run_command(partial(main, "pretrain_roberta.sh"))
