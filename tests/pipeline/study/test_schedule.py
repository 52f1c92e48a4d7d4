"""What a command shows of the cell that runs."""

from pipeline.study import quickstart
from pipeline.study.schedule import Follower
from pipeline.training.log import SECONDS_OF_SILENCE


def test_what_a_cell_does_is_said_while_its_log_is_silent(tmp_path, capsys):
    cell = quickstart.planned(quickstart.parse(["--out", str(tmp_path)]))[0]
    follower, now = Follower(cell), 0.0
    follower.progress.began = follower.progress.shown = now
    follower.progress.clock = lambda: now
    cell.folder.mkdir(parents=True)
    for said in ("", "evaluating checkpoint_last.pt\n"):
        follower.log.write_text(said)
        follower.look()
        now += SECONDS_OF_SILENCE
        follower.look()
    assert capsys.readouterr().out == "  starting, 00:20\n  evaluating, 00:40\n"
    follower.close()
