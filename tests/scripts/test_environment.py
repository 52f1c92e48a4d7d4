"""environment.py: when `.venv` is created again, and messages for failed installations."""

import fcntl
import hashlib
import json
import os
import re
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from scripts import build_fairseq, environment


@pytest.fixture(autouse=True)
def no_choices(monkeypatch):
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.delenv("TORCH_SPEC", raising=False)
    monkeypatch.delenv("WHEELHOUSE", raising=False)


def test_a_finished_environment_is_left_alone():
    made = environment.wanted({})
    assert made["torch"] == environment.DEFAULT_TORCH
    assert environment.wanted(made) == made


def test_what_was_chosen_once_stays(monkeypatch):
    monkeypatch.setenv("TORCH_SPEC", "torch==2.11.0")
    made = environment.wanted({}) | {"python": "3.12.1 elsewhere"}
    monkeypatch.delenv("TORCH_SPEC")
    assert environment.wanted(made) == made
    assert made["torch"] == "torch==2.11.0"


def test_in_a_clone_that_was_moved_the_python_is_the_one_that_runs():
    made = environment.wanted({})
    before = made | {"python": "3.12.1 elsewhere", "root": "/elsewhere"}
    assert environment.wanted(before) == made


def test_another_choice_counts(monkeypatch):
    made = environment.wanted({}) | {"python": "3.12.1 elsewhere"}
    monkeypatch.setenv("PYTHON", sys.executable)
    assert environment.wanted(made)["python"] != made["python"]
    monkeypatch.setenv("TORCH_SPEC", "torch==2.11.0")
    assert environment.wanted(made)["torch"] == "torch==2.11.0"


def test_a_new_default_torch_reaches_those_who_chose_none(monkeypatch):
    made = environment.wanted({})
    monkeypatch.setattr(environment, "DEFAULT_TORCH", "torch==3.0")
    assert environment.wanted(made)["torch"] == "torch==3.0"


def test_unfinished_environments_are_not_recorded(tmp_path, monkeypatch):
    ready = tmp_path / "ready.json"
    monkeypatch.setattr(environment, "READY", ready)
    monkeypatch.setattr(environment, "VENV_PYTHON", sys.executable)
    assert environment.recorded() == {}
    ready.write_text("{")
    assert environment.recorded() == {}
    ready.write_text(json.dumps({"torch": "x"}))
    assert environment.recorded() == {"torch": "x"}
    monkeypatch.setattr(environment, "VENV_PYTHON", tmp_path / "gone")
    assert environment.recorded() == {}


@pytest.fixture
def made(tmp_path, monkeypatch) -> Path:
    """The `ready.json` of a finished environment of this Python."""
    ready = tmp_path / "ready.json"
    monkeypatch.setattr(environment, "READY", ready)
    ready.write_text(json.dumps(environment.wanted({})))
    return ready


def test_an_interrupted_update_is_resumed_with_the_same_choices(made, monkeypatch):
    """The `.venv` stays, and its torch with it."""
    unfinished, steps = made.with_name("unfinished.json"), []
    monkeypatch.setattr(environment, "UNFINISHED", unfinished)
    monkeypatch.setattr(environment, "VENV_PYTHON", sys.executable)
    for check in ("check_compiler", "check_wheelhouse"):
        monkeypatch.setattr(environment, check, lambda: None)
    have = {**environment.wanted({}), "torch": "torch==2.12.0+cu126", "torch_chosen": True, "inputs": "old"}
    made.write_text(json.dumps(have))

    def run_step(step, number):
        steps.append(step.title)
        if not unfinished.with_name("tried").exists():
            unfinished.with_name("tried").touch()
            raise KeyboardInterrupt

    monkeypatch.setattr(environment, "run_step", run_step)
    with pytest.raises(KeyboardInterrupt):
        environment.ensure()
    assert not made.exists() and not environment.is_ready()
    environment.ensure()
    found = json.loads(made.read_text())
    assert (found["torch"], found["torch_chosen"]) == ("torch==2.12.0+cu126", True)
    assert not unfinished.exists() and not any("virtual environment" in title for title in steps)


@pytest.mark.parametrize("name", ["CC", "CXX"])
def test_a_compiler_for_another_processor_is_refused(tmp_path, monkeypatch, name):
    other = "x86_64" if os.uname().machine == "aarch64" else "aarch64"
    program = tmp_path / "compiler"
    program.write_text(f"#!/bin/sh\necho {other}-linux-gnu\n")
    program.chmod(0o755)
    environment.check_compiler()
    monkeypatch.setenv(name, str(program))
    with pytest.raises(environment.SetupError, match=f"{name}={program} makes code for another processor"):
        environment.check_compiler()


def test_ready_is_what_is_finished_and_up_to_date(made, monkeypatch):
    assert environment.is_ready()
    monkeypatch.setenv("TORCH_SPEC", "torch==2.11.0")
    assert not environment.is_ready()
    monkeypatch.delenv("TORCH_SPEC")
    monkeypatch.setattr(environment, "INPUTS", environment.INPUTS[1:])
    assert not environment.is_ready()


def test_interrupted_set_ups_are_not_ready(made):
    made.unlink()
    assert not environment.is_ready()


def test_ready_for_the_python_that_was_chosen(made, tmp_path, monkeypatch):
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PYTHON", str(tmp_path / "python"))
    assert environment.is_ready()
    for other in ("/bin/sh", "no-such-python"):
        monkeypatch.setenv("PYTHON", other)
        assert not environment.is_ready()


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("ERROR: No matching distribution found for torch==9", "lacks this version"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("NewConnectionError: Temporary failure in name resolution", "cannot be reached"),
        ("error: command '/usr/bin/gcc' failed", "command '/usr/bin/gcc' failed"),
        (
            "Looking in links: /wheels\nERROR: No matching distribution found for torch==9",
            "WHEELHOUSE lacks a wheel",
        ),
        ("", "it printed nothing"),
    ],
)
def test_causes_of_failures(line, meaning, tmp_path):
    log = tmp_path / "setup.log"
    log.write_text("No space left on device, in an earlier step\n")
    begin = log.stat().st_size
    with log.open("a") as file:
        file.write(line)
    assert meaning in environment.cause(log, begin)
    assert str(log) in environment.cause(log, begin)


@pytest.fixture
def somebody_elses(tmp_path, monkeypatch):
    """A clone in which this user may not write; returns its `ready.json`."""
    access = os.access
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "READY", tmp_path / "ready.json")
    monkeypatch.setattr(environment, "VENV_PYTHON", sys.executable)
    monkeypatch.setattr(environment, "wanted", lambda have: {"inputs": "of today"})
    monkeypatch.setattr(environment.os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    return tmp_path / "ready.json"


@pytest.mark.parametrize("inputs", ["of today", "of yesterday"])
def test_clone_of_somebody_else_is_used_as_it_is(inputs, somebody_elses, capsys):
    somebody_elses.write_text(json.dumps({"inputs": inputs}))
    environment.ensure()
    assert ("older than the sources" in capsys.readouterr().out) == (inputs == "of yesterday")
    assert list(somebody_elses.parent.iterdir()) == [somebody_elses]  # no lock


def test_clone_of_somebody_else_that_is_not_set_up(somebody_elses):
    with pytest.raises(environment.SetupError, match="is not set up and you may not write to .* clone the"):
        environment.ensure()
    assert not list(somebody_elses.parent.iterdir())


@pytest.fixture
def built(tmp_path, monkeypatch) -> list[int]:
    """Grows by an entry for each set-up of the clone `tmp_path`."""
    made: list[int] = []
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "recorded", lambda record=None: {})
    monkeypatch.setattr(environment, "wanted", lambda have: {"inputs": "of today"})
    monkeypatch.setattr(environment, "build", lambda have, want: made.append(1))
    return made


@pytest.mark.parametrize("kind", ["none", "text", "link", "pipe"])
def test_the_lock_of_a_set_up_changes_no_file_of_somebody_else(kind, built, tmp_path):
    lock, target = tmp_path / ".venv.lock", tmp_path / "precious"
    target.write_text("precious")
    if kind == "text":
        lock.write_text("mine")
    elif kind == "link":
        lock.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(lock)
    with pytest.raises(OSError, match="symbolic links") if kind == "link" else nullcontext():
        environment.ensure()
    assert built == [1] * (kind != "link") and target.read_text() == "precious"
    assert kind != "text" or lock.read_text() == "mine"


def test_a_second_set_up_waits_for_the_first(built, tmp_path, capsys):
    with (tmp_path / ".venv.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = threading.Thread(target=environment.ensure)
        second.start()
        while "Waiting for another set-up" not in capsys.readouterr().out:
            assert second.is_alive() and not built
    second.join()
    assert built == [1]


@pytest.fixture
def wheelhouse(tmp_path, monkeypatch):
    folder = tmp_path / "wheels and more"
    folder.mkdir()
    (folder / "a-1-py3-none-any.whl").write_bytes(b"a wheel")
    checksum = hashlib.sha256(b"a wheel").hexdigest()
    (folder / "SHA256SUMS").write_text(f"{checksum}  a-1-py3-none-any.whl\n")
    monkeypatch.setenv("WHEELHOUSE", str(folder))
    return folder


@pytest.fixture(params=[False, True], ids=["pip", "uv"])
def by_uv(request, tmp_path, monkeypatch) -> bool:
    """Whether uv is there; pip has its own settings."""
    monkeypatch.setattr(environment, "VENV_PYTHON", sys.executable)
    monkeypatch.setattr(environment, "UV", tmp_path / "uv")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one/simple https://two/simple")
    if request.param:
        (tmp_path / "uv").touch()
    return request.param


def test_everything_comes_from_the_wheelhouse(wheelhouse, by_uv):
    environment.check_wheelhouse()
    steps = list(environment.installation("torch==2"))
    assert len(steps) == environment.STEPS
    commands = [command for step in steps for command in step.commands]
    installs = [command for command in commands if "install" in command]
    assert len(installs) == 4
    assert sum(environment.UV in command for command in installs) == 2 * by_uv
    assert not [command for command in commands if environment.WHEELS in command]
    for command in installs:
        assert command[command.index("--no-index") + 1 :][:2] == ["--find-links", str(wheelhouse)]
        assert command.count("--find-links") == 1 and "--index" not in command


def test_without_a_wheelhouse_fairseq_is_built_and_installed(by_uv):
    steps = [step.commands for step in environment.installation("torch==2")]
    commands = [command for together in steps for command in together]
    [build] = [command for command in commands if environment.WHEELS in command and "install" not in command]
    [install] = [command for command in commands if environment.WHEELS in command and "install" in command]
    [together] = [commands for commands in steps if build in commands]
    assert any("-e" in command for command in together)  # the operator
    assert any("import torch" in str(command[-1]) for command in together)  # Python compiles its modules
    assert commands.index(build) < commands.index(install)
    assert install[-1] == build_fairseq.repaired()
    assert (environment.UV in install) == by_uv


def test_uv_installs_as_pips_settings_say(by_uv, monkeypatch):
    monkeypatch.setenv("PIP_CERT", "a.pem")
    command = list(map(str, environment.uv_install(False)))
    assert bool(command) == by_uv
    if by_uv:
        assert "SSL_CERT_FILE=a.pem" in command
        indexes = [command[i + 1] for i, word in enumerate(command) if word == "--index"]
        assert indexes == ["https://one/simple", "https://two/simple"]
    monkeypatch.setenv("PIP_NO_BINARY", "numpy")  # uv is not told: it would install something else
    assert environment.uv_install(False) == []


def test_settings_of_pip_as_pip_takes_them():
    listed = (
        ":env:.cert='c'\nglobal.cert='a'\nglobal.find-links='x\\ny'\ninstall.find-links='z'\ndownload.pre='1'"
    )
    assert environment.settings_of_pip(listed) == {"cert": "c", "find-links": "z"}


def exits(code: int) -> list[str]:
    return [sys.executable, "-c", f"print('code {code}'); exit({code})"]


@pytest.mark.parametrize(
    ("step", "shown", "error"),
    [
        (environment.Step("it", [exits(0), exits(0)]), "[1/2] it ... 0 s", None),
        (environment.Step("uv", [exits(1)], []), "uv ... not to be had, pip installs 0 s", None),
        (environment.Step("it", [exits(1)], [exits(0)]), "it ... with pip ... 0 s", None),
        (
            environment.Step("it", [exits(1)], [exits(3)]),
            "with pip",
            r"failed at \[1/2\] it: code 3 .*setup.log",
        ),
        (environment.Step("it", [exits(0), exits(4)]), "it ...", r"code 4 \(the whole log: .*setup-2.log"),
        (environment.Step("it", [["sleep", "600"], exits(4)]), "it ...", "code 4"),
    ],
)
def test_a_step_that_fails(step, shown, error, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environment, "LOG", tmp_path / "setup.log")
    with nullcontext() if error is None else pytest.raises(environment.SetupError, match=error):
        environment.run_step(step, "[1/2] ")
    assert shown in re.sub(r"\d+ s", "0 s", capsys.readouterr().out)


def test_damaged_wheelhouses(wheelhouse, monkeypatch):
    (wheelhouse / "a-1-py3-none-any.whl").write_bytes(b"another")
    with pytest.raises(
        environment.SetupError, match="a-1-py3-none-any.whl is damaged; copy the folder again"
    ):
        environment.check_wheelhouse()
    (wheelhouse / "a-1-py3-none-any.whl").unlink()
    with pytest.raises(environment.SetupError, match="lacks a-1-py3-none-any.whl"):
        environment.check_wheelhouse()
    (wheelhouse / "SHA256SUMS").unlink()
    with pytest.raises(environment.SetupError, match="which scripts/wheelhouse.sh has not written"):
        environment.check_wheelhouse()
