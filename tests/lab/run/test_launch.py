"""Which processes train, according to the command line and the variables of torchrun or srun."""

import os
import sys
from itertools import pairwise

import pytest
import torch

from lab.console import parse_before_flags
from lab.errors import UserError
from lab.options.train import training_parser
from lab.run.launch import Machines, first_host, free_port, machines_of, slurm_port
from tests.helpers import forked
from tests.helpers.tiny import losses

TRAIN_LM = "scripts/train_lm.sh"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SRUN = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
ONE_TASK_EACH = SRUN | {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
BATCH_SCRIPT = {"SLURM_JOB_ID": "1234", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}


def parsed(words):
    return parse_before_flags(*training_parser("lm"), ["x.yaml", *words])


@pytest.fixture
def machines(monkeypatch):
    """`machines(environ, visible GPUs, option, ...)`: where the command would train."""

    def find(environ, visible, *words):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        return machines_of(parsed(words), environ)

    return find


def values(words, flag):
    return [value for name, value in pairwise(words) if name == flag]


@pytest.mark.parametrize(
    ("environ", "visible", "expected"),
    [
        ({}, 4, Machines(4)),
        ({}, 0, Machines(0)),
        (BATCH_SCRIPT | {"SLURM_NTASKS": "1"}, 4, Machines(4)),
        (TORCHRUN, 4, Machines(1, 8, 5, "env://", launcher="torchrun", first_device=1)),
        (TORCHRUN, 1, Machines(1, 8, 5, "env://", launcher="torchrun")),
        (TORCHRUN, 0, Machines(0, 8, 5, "env://", launcher="torchrun")),
        (SRUN, 4, Machines(1, 8, 5, "gpu07:16234", launcher="slurm", first_device=1)),
        (SRUN, 1, Machines(1, 8, 5, "gpu07:16234", launcher="slurm")),  # --gpus-per-task=1
        (ONE_TASK_EACH, 4, Machines(4, 2, 1, "gpu07:16234", launcher="slurm")),
        (SRUN | {"MASTER_ADDR": "a", "MASTER_PORT": "9"}, 1, Machines(1, 8, 5, "a:9", launcher="slurm")),
    ],
)
def test_what_the_environment_says(environ, visible, expected, machines):
    assert machines(environ, visible) == expected


def test_every_rank_has_its_gpu(machines):
    """Four processes here, eight by srun: all ranks, each on its own GPU, and one place to meet."""
    here, there = machines({}, 4).ranks(), []
    for task in range(8):
        environ = SRUN | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task % 4)}
        there += machines(environ, 4).ranks()
    for ranks in (here, there):
        words = [word for rank in ranks for word in rank]
        assert values(words, "--distributed-rank") == [str(rank) for rank in range(len(ranks))]
        assert values(words, "--device-id") == [str(rank % 4) for rank in range(len(ranks))]
        assert len(set(values(words, "--distributed-init-method"))) == 1
    assert machines({}, 1).ranks() == [[]]
    second = [word for rank in Machines(4, 2, 1, "node0").ranks() for word in rank]
    assert values(second, "--distributed-rank") == ["4", "5", "6", "7"]
    assert values(second, "--device-id") == ["0", "1", "2", "3"]


def test_a_port_for_each_step():
    """Neighbouring jobs and steps differ; all tasks of a step find the same."""
    steps = [{"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in (7, 8) for step in (0, 1)]
    assert len({slurm_port(step) for step in steps}) == 4
    assert slurm_port(SRUN | {"SLURM_PROCID": "0"}) == slurm_port(SRUN)


@pytest.mark.parametrize(
    ("machines", "processes", "expected"),
    [
        (Machines(0), 1, "--cpu --distributed-world-size 1"),
        (Machines(8), 8, "--distributed-world-size 8"),
        (
            Machines(4, 2, 1, "node0"),
            8,
            "--distributed-world-size 8 --distributed-init-method tcp://node0:29500 --distributed-rank 4",
        ),
        (
            Machines(0, 2, 1, "node0:99"),
            2,
            "--cpu --distributed-world-size 2 --distributed-init-method tcp://node0:99 "
            "--distributed-rank 1 --distributed-no-spawn --distributed-backend gloo "
            "--ddp-backend legacy_ddp",
        ),
    ],
)
def test_flags_of_machines(machines, processes, expected):
    assert machines.processes == processes
    assert machines.flags() == expected.split()


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("a", "a"), ("a,b", "a"), ("n[003-007,9]", "n003"), ("n[1,3]-ib,m[2-4]", "n1-ib"), ("a,n[1-2]", "a")],
)
def test_first_of_slurms_host_names(hosts, first):
    assert first_host(hosts) == first


def test_a_command_inside_torchrun_that_starts_its_own_processes(monkeypatch, machines):
    """torch would wait for torchrun to serve the port."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert machines(TORCHRUN, 2, "--launcher", "spawn").environment() == {
        "TORCHELASTIC_USE_AGENT_STORE": "False"
    }
    assert machines(TORCHRUN, 2).environment() == {}


@pytest.mark.parametrize(
    ("environ", "visible", "words", "message"),
    [
        ({}, 1, "--launcher torchrun", "needs RANK, which torchrun sets"),
        ({}, 1, "--launcher slurm", "needs SLURM_PROCID, which srun sets"),
        (BATCH_SCRIPT, 4, "", "this job has 8 tasks, but srun has not started this command"),
        (TORCHRUN, 4, "--gpus 4", "torchrun starts a process for each GPU"),
        (SRUN, 4, "--nodes 2", "--nodes comes from srun"),
        (TORCHRUN, 4, "--master a", "--master comes from torchrun"),
        (TORCHRUN | {"LOCAL_RANK": "3"}, 2, "", "process 3 of this machine sees only 2 GPUs"),
        ({}, 4, "--cpu-processes 2", "--cpu-processes is for training on the CPU"),
        ({}, 4, "--gpus 1000", "--gpus is 1000, but this machine has 4"),
        ({}, 4, "--gpus -1", "--gpus is -1"),
        ({}, 0, "--nodes 2 --node-rank 2 --master a", "must be between 0 and 1"),
        ({}, 0, "--nodes 2", "--nodes needs --master"),
    ],
)
def test_launchers_that_cannot_be(environ, visible, words, message, machines):
    with pytest.raises(UserError, match=message):
        found = machines(environ, visible, *words.split())
        found.check()
        found.check_available()


def test_batch_script_that_starts_its_own_processes(machines):
    assert machines(BATCH_SCRIPT, 4, "--launcher", "spawn") == Machines(4)


def check_same_run(folder, trained):
    """Half the accumulation in each of two processes: the same effective batch as in one."""
    assert losses(folder) == pytest.approx(losses(trained), abs=2e-3)  # the log has three decimals
    two, one = (torch.load(run / "checkpoint_last.pt")["model"] for run in (folder, trained))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_srun_trains_what_one_process_trains(config, corpus, trained, tmp_path, root):
    """Two tasks of one machine; the second one says nothing and leaves nothing."""
    command = [sys.executable, "-m", "lab", TRAIN_LM, config, corpus, "--gpus", "0"]
    command += ["--save-dir", tmp_path / "run"]
    step = SRUN | {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    step |= {"MASTER_PORT": str(free_port())}
    tasks = [{"SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in "01"]
    started = [forked.start(command, cwd=root, env={**os.environ, **step, **task}) for task in tasks]
    first, second = (process.wait(check=True) for process in started)
    assert "log, checkpoints" in first.stdout and second.stdout == second.stderr == ""
    assert not list((tmp_path / "run").glob("train.*.log"))
    check_same_run(tmp_path / "run", trained)


@pytest.mark.longest
@pytest.mark.slow
def test_torchrun_on_two_machines_trains_what_one_process_trains(config, corpus, trained, tmp_path, root):
    """One process each; as far as torchrun knows they are two."""
    words = [TRAIN_LM, config, corpus, "--gpus", "0", "--save-dir", tmp_path / "run"]
    command = [sys.executable, "-m", "tests.helpers.elastic", f"127.0.0.1:{free_port()}", *words]
    machines = [forked.start(command, cwd=root) for _ in range(2)]
    said = [machine.wait(check=True).stdout for machine in machines]
    assert sum("log, checkpoints" in text for text in said) == 1
    check_same_run(tmp_path / "run", trained)
