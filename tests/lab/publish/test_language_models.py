"""The settings of language models beside the paper's."""

import pytest

from lab.publish.language_models import schedules


def run(rate, name="polynomial_decay", warm_up=100):
    optimization = {} if rate is None else {"lr": rate}
    scheduler = {"_name": name, "warmup_updates": warm_up}
    return {"settings": {"lr_scheduler": scheduler, "optimization": optimization}}


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (
            [run([0.016]), run(0.002), run([0.008]), run(0.002)],
            "0.002, 0.008 or 0.016, polynomial_decay, 100",
        ),
        ([run(0.1), run(0.2, "fixed", 0)], "0.1, polynomial_decay, 100; 0.2, fixed, 0"),
        ([run(0.1), run(None)], "0.1 or –, polynomial_decay, 100"),
    ],
    ids=["rates", "schedules", "unknown"],
)
def test_runs_with_one_schedule_name_it_once(runs, words):
    assert schedules(runs) == words
