"""What lab.sh check gpu runs on a GPU, as far as a machine without one can tell: the commands, what counts as
passed, continuing, the archive, and a dry run of every part."""

import importlib.util
import json
import os
import select
import subprocess
import sys
import tarfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import lm_cost, loss_cost, operator_cost, roberta_cost
from lab.checks import gpu_check
from lab.checks.gpu_check import outcome_of_tests, pack, parse, run, run_together
from lab.checks.gpu_parts import PARTS, Part, build_environment, parts, write_random_words
from lab.errors import UserError
from lab.files import ROOT
from tests.helpers import forked

HERE = {"gpu": "one"}
FORK = partial(forked.Popen, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})


def run_part(part: Part, out: Path, seconds: float) -> dict:
    [result] = run_together([part], out, seconds)
    return result


def module_and_arguments(part: Part) -> tuple[str, list[str]]:
    at = part.command.index("-m")
    return part.command[at + 1], part.command[at + 2 :]


@pytest.fixture
def by_name(tmp_path) -> dict[str, Part]:
    return {part.name: part for part in parts(tmp_path, tmp_path)}


def test_the_parts_are_those_of_the_stages(by_name):
    assert list(by_name) == [name for names in PARTS.values() for name in names]
    for names in PARTS.values():  # but for the build, which prebuilt kernels spare
        assert max(by_name[name].seconds for name in names) <= 300


def test_the_modules_take_their_arguments(by_name, tmp_path):
    for part in by_name.values():
        assert importlib.util.find_spec(module_and_arguments(part)[0])
    chosen = operator_cost.parse_arguments(module_and_arguments(by_name["operator"])[1])
    assert chosen.device == "cuda" and chosen.out == tmp_path and max(chosen.lengths) == 65536
    chosen = operator_cost.parse_arguments(module_and_arguments(by_name["anchor"])[1])
    assert chosen.device == "cuda" and chosen.shapes == "fla" and not chosen.quick
    for name, module in (("lm", lm_cost), ("roberta", roberta_cost)):
        chosen = module.BENCHMARK.parse(module_and_arguments(by_name[name])[1])
        assert chosen.bf16 and chosen.device == "cuda" and chosen.out.parent == tmp_path
    chosen = loss_cost.parse_arguments(module_and_arguments(by_name["loss"])[1])
    assert chosen.tokens == 32_768 and max(chosen.vocabulary) == 267_744 and chosen.out == tmp_path
    sanitizer = by_name["racecheck"].command
    assert sanitizer[0] == "compute-sanitizer" and sanitizer[sanitizer.index("--tool") + 1] == "racecheck"


def test_the_parts_are_listed_without_the_packages_of_the_plugin():
    """As on a machine that has only what the help names."""
    program = (
        "import sys\n"
        "for name in ('yaml', 'hydra', 'omegaconf', 'tqdm', 'fairseq'):\n    sys.modules[name] = None\n"
        "from lab.cli import COMMANDS\n"
        "from lab.checks import gpu_check\n"
        "options = COMMANDS['check gpu'].parse(['correctness', '--out', 'x'])\n"
        "assert gpu_check.parts(options.out, options.data)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_parts_of_the_stage():
    assert parse(["speed", "--out", "x", "--only", "lm"]).only == ("lm",)
    with pytest.raises(UserError, match="speed has no part 'tests'"):
        parse(["speed", "--out", "x", "--only", "lm,tests"])


def test_the_models_lengths_are_checked():
    with pytest.raises(UserError, match="expected divisors of 16384"):
        lm_cost.BENCHMARK.parse(["--lengths", "1000"])
    with pytest.raises(UserError, match="--rounds: '0' is not a whole number of 1 or more"):
        lm_cost.BENCHMARK.parse(["--rounds", "0"])


def test_a_build_is_for_this_gpu_alone():
    assert build_environment("8.6")["TORCH_CUDA_ARCH_LIST"] == "8.6"
    assert build_environment("9.0")["TORCH_CUDA_ARCH_LIST"] == "9.0a"


def test_a_part_that_fails_or_hangs_is_an_outcome(tmp_path):
    failed = run_part(Part("failing", [sys.executable, "-c", "print('so far'); exit(3)"], 60), tmp_path, 60)
    assert failed["outcome"] == "failed with exit code 3"
    assert (tmp_path / "failing.log").read_text() == "so far\n"
    hung = run_part(Part("hanging", ["sh", "-c", "sleep 600 & echo $!; wait"], 3), tmp_path, 60)
    assert hung["outcome"] == "stopped after 3 s"
    assert ended(int((tmp_path / "hanging.log").read_text())), "its child runs on"


def test_the_limit_of_a_part_holds_for_forks(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "subprocess", forked.subprocess_with(Popen=FORK))
    program = "import subprocess; x = subprocess.Popen(['sleep', '600']); print(x.pid, flush=True); x.wait()"
    part = Part("forked", [sys.executable, "-m", "timeit", "-n", "1", "-r", "1", program], 600)
    running = gpu_check.begin(part, tmp_path, 600)
    while not (child := running.log.read_text()).endswith("\n"):
        time.sleep(0.02)
    assert not running.ended()
    running.deadline = running.start
    assert running.ended()
    running.kill()
    assert ended(int(child)), "its child runs on"


def ended(process: int, seconds: float = 30) -> bool:
    """Whether a process ends within `seconds`."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor):
        return bool(select.select([descriptor], [], [], seconds)[0])


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        ("12 passed, 3 skipped in 5.1s", "passed"),
        ("SKIPPED [9] tests/x.py:3: no GPU\n9 skipped in 1s", "failed: no test ran (no GPU)"),
        ("3 deselected in 1s", "failed: no test ran"),
        ("4/90 tests collected (86 deselected) in 2s", "passed"),
    ],
)
def test_tests_of_which_none_ran_have_failed(log, outcome):
    assert outcome_of_tests(log) == outcome


def test_the_reason_why_no_test_ran_is_that_of_pytest(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.skip(reason='the kernels were not built')\ndef test_it(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", str(tmp_path)]
    found = run_part(Part("tests", command, 60, tests=True), tmp_path, 60)
    assert found["outcome"] == "failed: no test ran (the kernels were not built)"


def test_a_part_without_its_package_or_program_has_failed(tmp_path):
    found = run_part(Part("models", ["no-such-command"], 1, ("no_such_package",)), tmp_path, 60)
    assert found["outcome"] == "failed: this Python has no no_such_package"
    found = run_part(Part("memcheck", ["no-such-command"], 1), tmp_path, 60)
    assert found["outcome"] == "failed: there is no program no-such-command"


def test_the_operators_parts_need_no_fairseq(by_name):
    for name, part in by_name.items():
        assert ("fairseq" in part.needs) == (
            name in ("models", "lm", "roberta", "loss") or name.startswith("train-")
        )


def test_parts_that_need_not_be_alone_run_side_by_side(tmp_path):
    def waiting_for(other, own):
        wait = "import os, sys, time\nopen(sys.argv[2], 'w')\n"
        wait += "while not os.path.exists(sys.argv[1]): time.sleep(.01)"
        return [sys.executable, "-c", wait, str(tmp_path / other), str(tmp_path / own)]

    chosen = [
        Part("a", waiting_for("b", "a"), 60, alone=False),
        Part("b", waiting_for("a", "b"), 60, alone=False),
    ]
    assert run(chosen, tmp_path, HERE) == 0
    shown = json.loads((tmp_path / "gpu_check.json").read_text())["parts"]
    assert [x["part"] for x in shown] == ["a", "b"]
    assert [x["command"][-2:] for x in shown] == ["/a", "/b"]


def counting(tmp_path, name, code=0):
    """A part that counts its runs in a file."""
    text = f"open({str(tmp_path / name)!r}, 'a').write('x'); exit({code})"
    return Part(name, [sys.executable, "-c", text], 60)


def test_only_what_has_not_passed_runs_again(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    chosen = [counting(tmp_path, "good"), counting(tmp_path, "bad", 1)]
    assert run(chosen, out, HERE) == 1
    assert run(chosen, out, HERE) == 1
    assert (tmp_path / "good").read_text() == "x" and (tmp_path / "bad").read_text() == "xx"
    assert run(chosen[:1], out, HERE) == 0
    with pytest.raises(UserError, match="another GPU or other kernels"):
        run(chosen, out, {"gpu": "another"})


def test_the_time_of_the_command_ends_before_its_parts(tmp_path, monkeypatch):
    assert run([counting(tmp_path, "late")], tmp_path, HERE, seconds=1) == 75
    assert not (tmp_path / "late").exists()
    hanging = Part("hanging", ["sleep", "600"], 300)
    monkeypatch.setattr(gpu_check, "LEAST_SECONDS", 0)
    assert run([hanging, counting(tmp_path, "next")], tmp_path, HERE, seconds=2) == 75
    assert not (tmp_path / "next").exists()


def test_one_archive_holds_all_results(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "train.log").write_text("so far")
    (tmp_path / "train.bin").write_bytes(bytes(gpu_check.LARGE + 1))
    for _ in range(2):
        pack(tmp_path)
    with tarfile.open(tmp_path / gpu_check.ARCHIVE) as archive:
        assert archive.getnames() == ["deep/train.log"]


def test_hours_are_those_of_the_recipe(tmp_path):
    line = '2026-01-01 00:00:00 | INFO | train_inner | {"num_updates": "%d", "wps": "%s"}\n'
    (tmp_path / "train.log").write_text("".join(line % x for x in ((1, 1), (2, 5), (3, 100), (4, 1000))))
    found = gpu_check.speed_of_training(tmp_path / "train.log")
    assert found["tokens_per_second"] == 550
    assert found["wikitext103_hours"] == pytest.approx(100_000 * 65_536 / 550 / 3600)


@pytest.mark.slow
@pytest.mark.longest
@pytest.mark.exhaustive
@pytest.mark.parametrize("stage", PARTS)
def test_a_dry_run_goes_through_every_part(stage, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu_check, "subprocess", forked.subprocess_with(Popen=FORK))
    options = gpu_check.parse([stage, "--out", str(tmp_path / "out"), "--dry-run"])
    with pytest.raises(SystemExit) as end:
        gpu_check.main(options)
    record = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert [x["part"] for x in record["parts"]] == list(PARTS[stage])
    assert {x["part"]: x["outcome"] for x in record["parts"]} == dict.fromkeys(PARTS[stage], "passed")
    assert end.value.code == 0, capfd.readouterr()
    with tarfile.open(tmp_path / "out" / "gpu_check.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"gpu_check.json", *(f"{name}.log" for name in PARTS[stage])} <= names
    if stage == "speed":
        assert {
            "anchor.json",
            "operator_cost.json",
            "lm_cost.json",
            "roberta_cost.json",
            "loss_cost_cpu.json",
        } <= names
        trained = [x["part"] for x in record["parts"] if x.get("tokens_per_second", 0) > 0]
        assert trained == ["train-transnormer_t1"]
        log = (tmp_path / "out" / "train-transformer_lm.log").read_text()
        assert "--arch transformer_lm" in log


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_sentence_and_exit_code_2(tmp_path):
    command = [ROOT / "scripts" / "lab.sh", "check", "gpu", "speed", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHON": sys.executable})
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_an_old_setuptools_is_named_before_anything_is_built(tmp_path):
    (tmp_path / "setuptools.py").write_text('__version__ = "65.5.0"\n')
    environment = {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    command = [ROOT / "scripts" / "lab.sh", "check", "gpu", "correctness", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert "setuptools 77" in done.stderr and done.stderr.count("\n") == 1


def test_random_words_are_a_prepared_corpus(tmp_path):
    from lab.data.prepared import open_prepared

    write_random_words(tmp_path / "words", 50, 2500)
    data = open_prepared(tmp_path / "words", ("train",))
    assert data.tokens("train") == 2500
    assert len((tmp_path / "words" / "dict.txt").read_text().splitlines()) == 50
    assert not list(Path(tmp_path).glob("*.part"))


def test_the_help_says_that_its_folder_is_required(capsys):
    assert str(gpu_check.parse(["speed", "--out", "DIR"]).out) == "DIR"
    with pytest.raises(UserError, match="required: --out"):
        gpu_check.parse(["speed", "--dry-run"])
    with pytest.raises(SystemExit):
        gpu_check.parse(["--help"])
    usage = capsys.readouterr().out
    assert " --out DIR " in usage and "[--out" not in usage and "[DIR]" not in usage
