"""Runs side by side: one that is interrupted ends the others."""

import threading
from dataclasses import dataclass

import pytest

from pipeline.files import ROOT
from pipeline.studies.parallel_runs import run_all
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.recipe import read_experiment


@dataclass
class Run:
    name: str


def test_an_interruption_ends_what_the_others_train(tmp_path):
    flags = read_experiment(ROOT / "configs" / "copy" / "tiny.yaml").flags()
    flags += ["--user-dir", str(ROOT / "user_dir"), "--cpu", "--decoder-attention", "elu"]
    flags += ["--max-update", "1000000", "--log-interval", "1", "--no-save", "--disable-validation"]
    trains, ends = threading.Event(), []

    def say_so(line):
        if '"num_updates"' in line:
            trains.set()

    def work(run, place):
        if run.name == "interrupted":
            assert trains.wait(60)
            raise KeyboardInterrupt
        try:
            run_fairseq(
                "train", flags, tmp_path / "log", lambda line: '"num_updates"' in line and trains.set()
            )
        finally:
            ends.append(run.name)

    with pytest.raises(KeyboardInterrupt):
        run_all([Run("trained"), Run("interrupted")], 2, work)
    assert ends == ["trained"]
