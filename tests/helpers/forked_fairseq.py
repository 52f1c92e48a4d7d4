"""`run_fairseq` where the fixture `quick` of tests/pipeline makes it a fork."""

from pipeline.training.logged_run import run_fairseq

__all__ = ["run_fairseq"]
