"""The command behind pretrain_roberta.sh: train_lm's code with the configurations of encoders."""

from functools import partial

from scripts import train_lm
from scripts.command import run_command

main = partial(train_lm.main, "pretrain_roberta.sh")

if __name__ == "__main__":
    run_command(main)
