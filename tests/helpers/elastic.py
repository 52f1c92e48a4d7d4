"""torchrun on one of two machines, its worker a fork: `python -m tests.helpers.elastic ENDPOINT WORD...`.

The worker runs `python -m lab WORD...`; the machines find each other by the c10d rendezvous.
"""

import runpy
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def work(words: list[str]) -> None:
    """In a worker, with torchrun's variables in its environment."""
    sys.argv = ["lab", *words]
    runpy.run_module("lab", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    endpoint, *words = sys.argv[1:]
    config = LaunchConfig(
        min_nodes=2,
        max_nodes=2,
        nproc_per_node=1,
        run_id="two machines",
        rdzv_endpoint=endpoint,
        rdzv_backend="c10d",
        start_method="fork",
        max_restarts=0,
        monitor_interval=0.1,
    )
    elastic_launch(config, work)(words)
