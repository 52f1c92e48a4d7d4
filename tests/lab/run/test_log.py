"""fairseq's training log: its figures, and the view of it during training."""

import io
from itertools import pairwise

import pytest

from lab.publish.tables import shown, spread
from lab.run.log import LogTail, log_entries, run_figures
from lab.run.progress import Progress
from tests.helpers.logs import LOG, line

RUN = """\
2026-01-01 | INFO | fairseq_cli.train | Start iterating over samples
2026-01-01 | INFO | train_inner | {"epoch": 1, "loss": "9.5", "wps": "1000", "num_updates": "10"}
2026-01-01 | INFO | valid | {"epoch": 1, "valid_loss": "8.25", "valid_num_updates": "10"}
2026-01-01 | INFO | train_inner | {"loss": "7.25", "wps": "2000", "num_updates": "20", "x": null}
2026-01-01 | INFO | usage | {"peak_memory": 1048576}
"""


@pytest.fixture
def log(tmp_path):
    def write(lines):
        path = tmp_path / "train.log"
        path.write_text("".join(lines))
        return path

    return write


def test_curves_and_time_of_an_interrupted_run(log):
    figures = run_figures(log(LOG))
    assert figures["curves"]["train"] == [(10, 9.0), (20, 8.0), (30, 7.5), (40, 7.0)]
    assert figures["curves"]["valid"] == [(20, 8.5), (40, 7.2)]
    assert figures["seconds"] == 5 + 5 + 10 + 5 + 4  # the first is without a speed: the usual one
    assert figures["tokens_per_second"] == 128 and figures["tokens_per_update"] == 64
    assert figures["peak_memory_bytes"] == 1000


def test_a_run_shorter_than_an_interval_has_the_figures_of_its_epochs(log):
    epoch = line("train", train_loss=5.0, train_wps=32, train_wpb=16, train_num_updates=4)
    figures = run_figures(log([line("valid", valid_loss=6.0, valid_num_updates=4), epoch]))
    assert figures["tokens_per_second"] == 32 and figures["curves"]["train"] == [(4, 5.0)]
    assert figures["seconds"] == 4 * 16 / 32 and figures["updates"] == 4


def test_only_timed_intervals_have_a_speed(log):
    inner = [line("train_inner", loss=5.0, wps=wps, wpb=16, num_updates=n) for n, wps in ((1, 0), (2, 1000))]
    assert run_figures(log(inner))["tokens_per_second"] == 1000
    found = run_figures(log(inner[:1]))
    assert (found["tokens_per_second"], found["seconds"], found["updates"]) == (None, None, 1)


def test_the_time_of_updates_after_the_last_interval_and_of_unequal_epochs_counts(log):
    """At a second an update."""
    inner = [line("train_inner", loss=5.0, wps=16, wpb=16, num_updates=update) for update in (100, 200)]
    end = line("train", train_loss=5.0, train_wps=16, train_wpb=16, train_num_updates=250)
    figures = run_figures(log([*inner, end]))
    assert figures["seconds"] == figures["updates"] == 250
    epochs = [
        line("train", train_loss=5.0, train_wps=16, train_wpb=16, train_num_updates=update)
        for update in (40, 80, 85)
    ]
    assert run_figures(log(epochs))["seconds"] == 85


def test_a_run_without_an_interval_has_a_dash_in_every_table(log):
    seconds = run_figures(log([line("valid", valid_loss=6.0, valid_num_updates=4)]))["seconds"]
    assert spread([seconds, seconds]) == shown(seconds, ".1f") == "–"
    assert spread([seconds, 2.0, 4.0], "{:.0f}") == "3 (2 to 4)"


def test_records():
    records = list(log_entries(RUN.splitlines()))
    assert [kind for kind, _ in records] == ["train_inner", "valid", "train_inner", "usage"]
    assert records[2][1] == {"loss": 7.25, "wps": 2000, "num_updates": 20}


def test_half_a_line_before_the_next_process(log):
    """Killed, or stopped by a full disk, in the middle of a record, or of a letter."""
    begun = "2026-01-01 | INFO | fairseq_cli.train | {'_name': None}\n"
    path = log([LOG[0], LOG[1][:-9] + begun, *LOG[1:]])
    path.write_bytes(path.read_bytes() + "ü".encode()[:1])
    assert run_figures(path)["curves"] == run_figures(log(LOG))["curves"]


class Terminal(io.StringIO):
    """Something written to as to a terminal."""

    def isatty(self):
        return True


def followed(out, updates=20, lines=RUN):
    """The lines shown during a run, each redrawn line for itself."""
    progress = Progress(updates, out)
    for one in lines.splitlines():
        progress.feed(one)
    if progress.bar is not None:
        progress.bar.dynamic_ncols = lambda file: (80, 24)
        progress.bar.refresh()
    progress.close()
    assert out.getvalue().endswith("\n")
    return out.getvalue().strip().replace("\r", "\n").splitlines()


def test_the_first_and_the_last_update_are_shown():
    assert followed(io.StringIO()) == [
        "  update 10/20, loss 9.50 bits, 1,000 tokens/s".strip(),
        "  update 20/20, loss 7.25 bits (validation 8.25), 2,000 tokens/s",
    ]


def test_a_bar_on_a_terminal():
    first, *_, last = followed(Terminal())
    assert "10/20" in first and "20/20" in last and "loss 7.25, valid 8.25, 2,000 tok/s" in last


def test_a_bar_of_a_long_run_fits_80_columns():
    lines = """\
| INFO | train_inner | {"loss": "12.5", "wps": "1234567", "num_updates": "100000"}
| INFO | valid | {"valid_loss": "12.25", "valid_accuracy": "56.78", "valid_num_updates": "100000"}
| INFO | train_inner | {"loss": "12.5", "wps": "1234567", "num_updates": "100050"}
"""
    last = followed(Terminal(), 200_000, lines)[-1].rstrip()
    assert len(last) <= 80 and last.endswith("loss 12.50, valid 56.8 %, 1,234,567 tok/s"), last


def test_a_terminal_shows_a_run_that_starts():
    out = Terminal()
    progress = Progress(20, out)
    progress.wait()
    assert "starting" in out.getvalue()
    progress.close()


def test_time_left():
    out, seconds = io.StringIO(), iter(range(0, 1000, 20))
    progress = Progress(40, out, clock=lambda: next(seconds))
    for update in (10, 20):  # 20 seconds for 10 updates
        progress.feed(f'| INFO | train_inner | {{"loss": "9.5", "wps": "1000", "num_updates": "{update}"}}')
    last = out.getvalue().splitlines()[-1]
    assert last.endswith("update 20/40, loss 9.50 bits, 1,000 tokens/s, 00:40 left")


def test_silence_is_broken_where_there_is_no_terminal():
    out, now = io.StringIO(), [0.0]
    progress = Progress(20, out, lambda: now[0])
    said = []
    for one in RUN.splitlines():
        for _ in range(30):  # half a minute
            now[0] += 1
            progress.wait()
        progress.feed(one)
        said.append(out.getvalue().count("\n"))
    assert said[0] == 1 and all(after > before for before, after in pairwise(said))
    assert "starting" in out.getvalue().splitlines()[0]


def test_a_log_is_followed_line_by_line(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("old\n")
    tail = LogTail(path, 4)
    with path.open("a", buffering=1) as log:
        log.write("one\ntwo\nhal")
        log.flush()
        assert tail.lines() == ["one", "two"] and tail.last() == ["hal"]
        log.write("f\n")
        assert tail.lines() == ["half"] and tail.last() == []
        log.write("passed over\nhal")
        log.flush()
        tail.skip()
        log.write("f\nnew\n")
        assert tail.lines() == ["f", "new"]
    tail.close()
