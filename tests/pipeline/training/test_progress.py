"""fairseq's log, read."""

import io
from itertools import pairwise

from pipeline.training.process.progress import Place, Progress, read_records

LOG = """\
2026-01-01 | INFO | fairseq_cli.train | Start iterating over samples
2026-01-01 | INFO | train_inner | {"epoch": 1, "loss": "9.5", "wps": "1000", "num_updates": "10"}
2026-01-01 | INFO | valid | {"epoch": 1, "valid_loss": "8.25", "valid_num_updates": "10"}
2026-01-01 | INFO | train_inner | {"loss": "7.25", "wps": "2000", "num_updates": "20", "x": null}
2026-01-01 | INFO | usage | {"peak_memory": 1048576}
"""


def test_records():
    records = list(read_records(LOG.splitlines()))
    assert [kind for kind, _ in records] == ["train_inner", "valid", "train_inner", "usage"]
    assert records[2][1] == {"loss": 7.25, "wps": 2000, "num_updates": 20}


def test_progress_shows_the_first_and_the_last_update():
    out = io.StringIO()
    progress = Progress(20, out)
    for line in LOG.splitlines():
        progress.feed(line)
    progress.close()
    assert out.getvalue().splitlines() == [
        "  update 10/20, loss 9.50 bits, 1,000 tokens/s",
        "  update 20/20, loss 7.25 bits (validation 8.25), 2,000 tokens/s",
    ]


def test_progress_is_a_bar_on_a_terminal():
    out = io.StringIO()
    out.isatty = lambda: True
    progress = Progress(20, out)
    for line in LOG.splitlines():
        progress.feed(line)
    progress.close()
    first, *_, last = out.getvalue().strip().split("\r")
    assert "10/20" in first
    assert "20/20" in last and "loss 7.25, valid 8.25, 2,000 tok/s" in last
    assert out.getvalue().endswith("\n")


def test_time_left_is_that_of_all_runs_of_a_row():
    out, seconds = io.StringIO(), iter(range(0, 1000, 20))
    progress = Progress(40, out, clock=lambda: next(seconds), place=Place(before=40, after=80))
    for update in (10, 20):  # 20 seconds for 10 updates
        progress.feed(f'| INFO | train_inner | {{"loss": "9.5", "wps": "1000", "num_updates": "{update}"}}')
    assert (
        out.getvalue()
        .splitlines()[-1]
        .endswith("update 20/40, loss 9.50 bits, 1,000 tokens/s, 03:20 left in all")
    )


def test_a_bar_covers_all_runs_of_a_row():
    out = io.StringIO()
    out.isatty = lambda: True
    progress = Progress(20, out, place=Place(before=20, after=40))
    for line in LOG.splitlines():
        progress.feed(line)
    progress.close()
    assert "30/80" in out.getvalue() and "40/80" in out.getvalue().strip().split("\r")[-1]


def test_a_bar_of_a_long_run_fits_80_columns():
    out = io.StringIO()
    out.isatty = lambda: True
    progress = Progress(200_000, out)
    lines = [
        '| INFO | train_inner | {"loss": "12.5", "wps": "1234567", "num_updates": "100000"}',
        '| INFO | valid | {"valid_loss": "12.25", "valid_accuracy": "56.78", "valid_num_updates": "100000"}',
        '| INFO | train_inner | {"loss": "12.5", "wps": "1234567", "num_updates": "100050"}',
    ]
    for line in lines:
        progress.feed(line)
    progress.bar.dynamic_ncols = lambda file: (80, 24)
    progress.bar.refresh()
    last = out.getvalue().split("\r")[-1].rstrip()
    progress.close()
    assert len(last) <= 80 and last.endswith("loss 12.50, valid 56.8 %, 1,234,567 tok/s"), last


def test_silence_is_broken_where_there_is_no_terminal():
    out, now = io.StringIO(), [0.0]
    progress = Progress(20, out, lambda: now[0])
    said = []
    for line in LOG.splitlines():
        for _ in range(30):  # half a minute
            now[0] += 1
            progress.wait()
        progress.feed(line)
        said.append(out.getvalue().count("\n"))
    assert said[0] == 1 and all(after > before for before, after in pairwise(said))
    assert "starting" in out.getvalue().splitlines()[0]


def test_a_terminal_shows_a_run_that_starts():
    out = io.StringIO()
    out.isatty = lambda: True
    progress = Progress(20, out)
    progress.wait()
    assert "starting" in out.getvalue()
    progress.close()
