"""What gpu_check.sh runs on a GPU, as far as a machine without one can tell."""

import importlib.util
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq import options

from benchmarks import lm_cost, operator_cost
from causal_linear_attention import info
from pipeline.errors import UserError
from pipeline.files import ROOT
from pipeline.studies.gpu_check import ARCHITECTURES, Part, parts, run_part


def module_and_arguments(part: Part) -> tuple[str, list[str]]:
    at = part.command.index("-m")
    return part.command[at + 1], part.command[at + 2 :]


@pytest.fixture
def by_name(tmp_path) -> dict[str, Part]:
    return {part.name: part for part in parts(tmp_path, tmp_path)}


def test_all_parts_fit_into_eleven_minutes(by_name, tmp_path):
    assert sum(part.seconds for part in by_name.values()) <= 11 * 60 - 10
    without_training = ["build", "info", "tests", "triton", "operator", "models"]
    assert [part.name for part in parts(tmp_path, None)] == without_training
    assert [part.name for part in parts(tmp_path, tmp_path, ["build", "train"])][1] == "train-transnormer_t1"


def test_the_modules_take_their_arguments(by_name, tmp_path):
    for name in ("info", "tests", "triton", "operator", "models"):
        assert importlib.util.find_spec(module_and_arguments(by_name[name])[0])
    chosen = operator_cost.parse_arguments(module_and_arguments(by_name["operator"])[1])
    assert chosen.device == "cuda" and chosen.out == tmp_path and max(chosen.lengths) == 65536
    chosen = lm_cost.parse_arguments(module_and_arguments(by_name["models"])[1])
    settings = lm_cost.settings_for("cuda", False, [*ARCHITECTURES], rounds=chosen.rounds, lengths=[1, 2])
    assert chosen.lengths == "2048,16384"
    assert len(lm_cost.cases_of(settings)) * 13 < by_name["models"].seconds
    assert info.main([*module_and_arguments(by_name["info"])[1], "--no-self-test"]) == 0
    assert (ROOT / by_name["build"].command[-3]).is_file()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fairseq_takes_the_flags_of_the_trainings(name, by_name):
    module, flags = module_and_arguments(by_name[f"train-{name}"])
    assert importlib.util.find_spec(module)
    parsed = options.parse_args_and_arch(options.get_training_parser(), flags)
    assert parsed.arch == name and parsed.bf16 and parsed.max_update == 200
    assert not Path(parsed.save_dir).is_relative_to(ROOT)


def test_the_models_lengths_are_checked():
    with pytest.raises(UserError, match="expected divisors of 16384"):
        lm_cost.parse_arguments(["--lengths", "1000"])
    with pytest.raises(UserError, match="--rounds is 0; expected 1 or more"):
        lm_cost.parse_arguments(["--rounds", "0"])


def test_a_part_that_fails_or_hangs_is_an_outcome(tmp_path):
    failed = run_part(Part("failing", [sys.executable, "-c", "print('so far'); exit(3)"], 60), tmp_path)
    assert failed["outcome"] == "failed with exit code 3"
    assert (tmp_path / "failing.log").read_text() == "so far\n"
    hung = run_part(Part("hanging", ["sh", "-c", "sleep 600 & echo $!; wait"], 3), tmp_path)
    assert hung["outcome"] == "stopped after 3 s"
    assert ended(int((tmp_path / "hanging.log").read_text())), "its child runs on"


def ended(process: int, seconds: float = 30) -> bool:
    """Whether a process ends within `seconds`."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor):
        return bool(select.select([descriptor], [], [], seconds)[0])


def test_a_part_without_its_package_is_left_out(tmp_path):
    left_out = run_part(Part("models", ["no-such-command"], 1, "no_such_package"), tmp_path)
    assert left_out["outcome"] == "left out without no_such_package"


def test_the_operators_parts_need_no_fairseq(by_name):
    for name, part in by_name.items():
        assert (part.needs == "fairseq") == (name == "models" or name.startswith("train-"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_sentence_and_exit_code_2(tmp_path):
    command = [ROOT / "scripts" / "gpu_check.sh", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHON": sys.executable})
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_an_old_setuptools_is_named_before_anything_is_built(tmp_path):
    (tmp_path / "setuptools.py").write_text('__version__ = "65.5.0"\n')
    environment = {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    command = [ROOT / "scripts" / "gpu_check.sh", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert "setuptools 77" in done.stderr and done.stderr.count("\n") == 1
