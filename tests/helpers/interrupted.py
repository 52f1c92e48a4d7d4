"""`fairseq-train` that gets Ctrl-C in one of its updates.

    python -m tests.helpers.interrupted UPDATE TIMES ARGUMENTS...

Update 0 means before the first one, while the trainer looks for a checkpoint.
"""

import os
import signal
import sys

from fairseq.trainer import Trainer
from fairseq_cli import train


def main() -> None:
    update, times = int(sys.argv.pop(1)), int(sys.argv.pop(1))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(name, due):
        method = getattr(Trainer, name)

        def call(self, *args, **kwargs):
            if due(self):
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
            return method(self, *args, **kwargs)

        setattr(Trainer, name, call)

    interrupted("load_checkpoint", lambda trainer: update == 0)
    interrupted("train_step", lambda trainer: trainer.get_num_updates() == update - 1)
    train.cli_main()


if __name__ == "__main__":
    main()
