"""`fairseq-train` that gets a signal, such as SIGINT for Ctrl-C, in one of its updates.

    python -m tests.helpers.interrupted SIGNAL UPDATE TIMES ARGUMENTS...

Update 0 means before the first one, while the trainer looks for a checkpoint.
"""

import os
import signal
import sys

from fairseq.trainer import Trainer
from fairseq_cli import train


def main() -> None:
    sent, update, times = (int(sys.argv.pop(1)) for _ in range(3))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(name, due):
        method = getattr(Trainer, name)

        def call(self, *args, **kwargs):
            if due(self):
                for _ in range(times):
                    os.kill(os.getpid(), sent)
            return method(self, *args, **kwargs)

        setattr(Trainer, name, call)

    interrupted("load_checkpoint", lambda trainer: update == 0)
    interrupted("train_step", lambda trainer: trainer.get_num_updates() == update - 1)
    train.cli_main()


if __name__ == "__main__":
    main()
