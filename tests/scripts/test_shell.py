"""The shell files: syntax, help, and set-ups that cannot be."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.cli import OLD, name_of
from lab.files import ROOT
from lab.glue_tasks import TASKS as GLUE
from lab.study.declaration import read_study

SHELL = sorted([*ROOT.glob("scripts/*.sh"), *ROOT.glob("data-prep/*.sh"), *ROOT.glob(".ci/*")])
LINKS = [path for path in SHELL if path.is_symlink()]
COMMANDS = [path for path in SHELL if os.access(path, os.X_OK) and path not in LINKS]
COMMANDS += [ROOT / name for name in OLD]


@pytest.fixture
def fresh(tmp_path) -> Path:
    """A copy of the project without `.venv`; its path holds spaces."""
    copy = tmp_path / "a fresh copy"
    inputs = ("requirements.txt", "pyproject.toml", "setup.py", "build_kernels.py", "build_machine.py")
    shutil.copytree(ROOT / "scripts", copy / "scripts", symlinks=True)
    for name in (*inputs, "causal_linear_attention/sources.py"):
        target = copy / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, target)
    return copy


def run(*command: str | Path, cwd: str | Path = "/", **environment: str) -> subprocess.CompletedProcess:
    """How a command ends that nobody can answer, with what it prints."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C", **environment},  # bash complains of a locale that is missing
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def set_up(fresh: Path, **environment: str) -> str:
    """The sentence with which a set-up fails that needs no more than a moment."""
    done = run(fresh / "scripts" / "test.sh", "--version", **environment)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("path", SHELL, ids=lambda p: p.name)
def test_syntax_and_settings(path):
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text()
    assert "eval " not in text
    assert "set -euo pipefail" in text or not os.access(path, os.X_OK)


def test_commands_read_and_write_utf_8_in_any_locale():
    line = f"source '{ROOT}/scripts/lib.sh'; python3 -c 'import sys; print(sys.flags.utf8_mode)'"
    done = run("bash", "-c", line, LC_ALL="C.UTF-8", PYTHONUTF8="")
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("path", COMMANDS, ids=lambda p: p.name)
def test_help_does_not_set_anything_up(path):
    done = run(path, "--help", TORCH_SPEC="torch==0.0")
    name = str(path.relative_to(ROOT))
    assert done.returncode == 0 and done.stderr.count("\n") == (name in OLD)
    usage = f"usage: {name_of(OLD[name]) if name in OLD else name}"
    assert usage in done.stdout
    if path.parent.name == "data-prep":
        assert done.stdout.startswith(usage)


@pytest.mark.parametrize(
    "words", ["lab.sh", "lab.sh evaluate mlm --help", "train_lm.sh c.yaml -h", "report.sh -h"]
)
def test_help_before_the_set_up_is_one_sentence_that_names_it(words, fresh, tmp_path):
    name, *rest = words.split()
    for tool in ("bash", "dirname"):  # and no Python
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = run(fresh / "scripts" / name, *rest, PATH=str(tmp_path), PYTHON="")
    assert done.returncode == 0 and not done.stderr and done.stdout.count("\n") == 1
    assert done.stdout.startswith(f"scripts/{name} ") and "scripts/lab.sh setup" in done.stdout


def test_the_set_up_takes_no_options(fresh):
    done = run(fresh / "scripts" / "lab.sh", "setup", "-h")
    assert done.returncode == 0 and done.stdout.startswith("usage: scripts/lab.sh setup\n")
    done = run(fresh / "scripts" / "lab.sh", "setup", "--quick", "now")
    assert done.returncode == 1 and "takes no options, but got --quick now; leave" in done.stderr
    assert not (fresh / ".venv").exists()


@pytest.mark.parametrize("folder", ["scripts", "data-prep"])
def test_a_script_finds_its_command_from_its_own_folder(folder):
    name = {"scripts": "eval_ppl.sh", "data-prep": "images.sh"}[folder]
    done = run("bash", name, "--help", cwd=ROOT / folder)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: {folder}/{name} ")


def test_folders_that_cd_searches_lead_nowhere():
    done = run("bash", "scripts/lab.sh", "report", "--help", cwd=ROOT, CDPATH=f".:{ROOT}")
    assert done.returncode == 0 and done.stdout.startswith("usage: scripts/lab.sh report "), done.stderr


@pytest.mark.parametrize("name", ["wheelhouse.sh", "build_wheel.sh"])
@pytest.mark.parametrize(
    ("words", "message"),
    [([], "give one folder"), (["a", "b"], "give one folder"), (["--foo"], "there is no option --foo")],
)
def test_a_folder_and_nothing_else(name, words, message, fresh):
    done = run(fresh / "scripts" / name, *words)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == f"error: {message}; see scripts/{name} --help\n"
    assert not [*fresh.rglob("--foo")] and not (fresh / ".venv").exists()


@pytest.mark.parametrize("name", ["wheelhouse.sh", "build_wheel.sh"])
def test_a_folder_of_others_is_refused(name, fresh, tmp_path):
    (folder := tmp_path / "others").mkdir()
    (folder / "notes.md").write_text("mine")
    done = run(fresh / "scripts" / name, folder)
    assert done.returncode == 1 and "holds other files" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["notes.md"] and not (fresh / ".venv").exists()


def seemingly_finished(fresh: Path, program: str) -> Path:
    """`fresh` with a `.venv` whose Python is this shell program."""
    (python := fresh / ".venv" / "bin" / "python").parent.mkdir(parents=True)
    python.write_text(program)
    python.chmod(0o755)
    (fresh / ".venv" / "ready.json").write_text("{}")
    return fresh


PIP = """#!/bin/sh
while [ $# -gt 0 ] && [ "$1" != --wheel-dir ]; do shift; done
[ $# = 0 ] || echo new >"$2/torch-2-py3-none-any.whl"
"""


@pytest.fixture
def with_pip(fresh) -> Path:
    """A copy whose `.venv` seems finished, with a pip that makes one wheel."""
    return seemingly_finished(fresh, PIP)


WHEELHOUSE = ".linear-attention-wheelhouse"
SUMS = f"{'0' * 64}  torch-1-py3-none-any.whl\n{'0' * 64}  ../outside.whl\n"


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"SHA256SUMS": SUMS, "torch-1-py3-none-any.whl": "old", WHEELHOUSE: ""},
        {".part/pip.log": "old", WHEELHOUSE: ""},
    ],
)
def test_wheels_come_into_the_folder_itself(before, with_pip, tmp_path):
    """It may be the current one, or a separate disk, which nothing can replace."""
    folder = tmp_path / "the wheels"
    folder.mkdir()
    (tmp_path / "outside.whl").touch()
    for name, content in before.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    inode = folder.stat().st_ino
    done = run(with_pip / "scripts" / "wheelhouse.sh", ".", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"set up with WHEELHOUSE={folder}\n" in done.stdout
    assert folder.stat().st_ino == inode
    assert sorted(os.listdir(folder)) == [WHEELHOUSE, "SHA256SUMS", "torch-2-py3-none-any.whl"]
    assert (tmp_path / "outside.whl").exists()
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=folder, check=True)


@pytest.mark.parametrize("names", [("SHA256SUMS", "thesis.pdf"), ("SHA256SUMS", "mine.whl"), (".part",)])
def test_files_that_look_like_a_wheelhouse_are_kept(names, with_pip, tmp_path):
    (folder := tmp_path / "downloads").mkdir()
    for name in names:
        (folder / name).write_text("mine")
    done = run(with_pip / "scripts" / "wheelhouse.sh", folder)
    assert done.returncode == 1 and "holds other files" in done.stderr
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(names, "mine")


def test_a_wheel_that_cannot_be_built_leaves_the_folder_as_it_is(fresh, tmp_path):
    """A folder of this script is known by its log, which a link is not."""
    fails = '#!/bin/sh\ncase "$*" in *--ready) exit 0;; esac\necho "no $*"\nexit 1\n'
    script = seemingly_finished(fresh, fails) / "scripts" / "build_wheel.sh"
    (folder := tmp_path / "wheels").mkdir()
    for name in ("build_wheel.log", "mine.whl"):
        (folder / name).write_text("mine")
    done = run(script, folder)
    assert done.returncode == 1 and done.stderr == f"error: that failed; see {folder}/build_wheel.log\n"
    assert (folder / "build_wheel.log").read_text().startswith("no setup.py ")
    assert (folder / "mine.whl").read_text() == "mine" and len(list(folder.iterdir())) == 2
    (folder / "build_wheel.log").unlink()
    (folder / "build_wheel.log").symlink_to(folder / "mine.whl")
    assert "holds other files" in run(script, folder).stderr and (folder / "mine.whl").read_text() == "mine"


BESIDE = """#!/bin/sh
while [ $# -gt 0 ] && [ "$1" != --target ]; do shift; done
[ $# = 0 ] && echo "a Python" && exit
echo "$PIP" >"$2/package.py"
[ "$PIP" != broken ]
"""


def test_packages_are_installed_beside_once_and_whole(fresh, tmp_path):
    folder, text = tmp_path / "beside", 'source "$1"; install_beside "$2" "$3" --no-deps'
    (wanted := tmp_path / "list.txt").write_text("package==1\n")
    words = (
        "bash",
        "-euc",
        text,
        "test",
        seemingly_finished(fresh, BESIDE) / "scripts" / "lib.sh",
        folder,
        wanted,
    )

    def installed(pip: str) -> str:
        before = {path.name for path in tmp_path.iterdir()}
        done = run(*words, PIP=pip)
        assert {path.name for path in tmp_path.iterdir()} - before <= {folder.name}, "what it began is left"
        return done.stdout + done.stderr

    folder.mkdir()
    (folder / "package.py").write_text("mine\n")
    assert "was not made by these scripts" in installed("first")
    (folder / "package.py").rename(tmp_path / "mine.py")
    folder.rmdir()
    assert "pip could not install" in installed("broken") and not folder.exists()
    assert installed("first") == f"Installing {wanted} into {folder}\n" and installed("second") == ""
    wanted.write_text("package==2\n")
    assert "pip could not install" in installed("broken")
    assert (folder / "package.py").read_text() == "first\n"
    assert installed("third").startswith("Installing")
    assert (folder / "package.py").read_text() == "third\n"


@pytest.mark.parametrize(
    ("given", "found"),
    [("", "2 -m not exhaustive"), ("--all", "2"), ("--all -x", "2 -x"), ("tests/cpp -x", "2 tests/cpp -x")],
)
def test_without_arguments_exhaustive_tests_are_left_out(given, found, tmp_path):
    (tmp_path / "lib.sh").write_text('begin_tests() { :; }\nrun_tests() { echo "$@"; }\n')
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path)
    assert run(tmp_path / "test.sh", *given.split()).stdout == f"{found}\n"


@pytest.mark.parametrize(("given", "found"), [("wheels", "{}/wheels"), ("/wheels", "/wheels"), ("", "")])
def test_the_wheelhouse_is_that_of_the_callers_folder(given, found, tmp_path):
    """test_triton.sh installs from it after it has gone to the project's folder."""
    text = 'source "$1"; ensure_environment() { :; }; begin_tests; printf "%s\\n" "$PWD" "$WHEELHOUSE"'
    done = run("bash", "-euc", text, "test", ROOT / "scripts" / "lib.sh", cwd=tmp_path, WHEELHOUSE=given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [str(ROOT), found.format(tmp_path)]


def test_paths_of_gpu_check_are_those_of_the_callers_folder(tmp_path):
    (tmp_path / "project").symlink_to(ROOT)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || printf "%s\\n" "$PWD" "$@"\n')
    python.chmod(0o755)
    words = ("check", "gpu", "speed", "--out", "my results")
    done = run("project/scripts/lab.sh", *words, cwd=tmp_path, PYTHON="./python")
    assert done.returncode == 0, done.stderr
    command = ["-m", "lab", "scripts/lab.sh", *words]
    assert done.stdout.splitlines() == [str(tmp_path), *command]


def test_python_that_is_missing(fresh):
    assert "PYTHON=no-such-python does not run" in set_up(fresh, PYTHON="no-such-python")
    assert not (fresh / ".venv").exists()


def test_python_of_another_version(fresh, tmp_path):
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\necho 'is Python 3.8; 3.11 to 3.14 is needed'\n")
    old.chmod(0o755)
    assert "is Python 3.8; 3.11 to 3.14 is needed" in set_up(fresh, PYTHON=str(old))


@pytest.fixture
def finished(fresh, tmp_path) -> Path:
    """A copy whose `.venv` seems finished; its Python notes its arguments, any other Python is a failure."""
    return seemingly_finished(fresh, f'#!/bin/sh\necho "$*" >>"{tmp_path}/calls"\nexit "${{ANSWER:-0}}"\n')


def ensure(project: Path, **environment: str) -> subprocess.CompletedProcess:
    words = ("bash", "-euc", 'source "$1"; ensure_environment', "test", project / "scripts" / "lib.sh")
    return run(*words, **{"PYTHON": "no-such-python", **environment})


def test_an_environment_that_is_ready_costs_one_start_of_its_own_python(finished, tmp_path):
    assert ensure(finished).returncode == 0
    [call] = (tmp_path / "calls").read_text().splitlines()
    assert call == f"-I -S {finished}/scripts/environment.py --ready"


@pytest.mark.parametrize("unfinished", ["ready.json", "bin/python", ""])
def test_any_other_environment_is_made_by_a_suitable_python(unfinished, finished):
    if unfinished:
        (finished / ".venv" / unfinished).unlink()
    done = ensure(finished, ANSWER="1")
    assert done.returncode == 1
    assert "PYTHON=no-such-python does not run" in done.stderr


def test_no_compiler(fresh):
    assert "no-gcc not found" in set_up(fresh, PYTHON=sys.executable, CC="no-gcc")
    assert not (fresh / ".venv").exists()


def test_environment_of_somebody_else(fresh):
    (fresh / ".venv" / "bin").mkdir(parents=True)
    assert "was not made by these scripts" in set_up(fresh, PYTHON=sys.executable)
    assert (fresh / ".venv" / "bin").is_dir()


@pytest.mark.slow
def test_package_index_out_of_reach(fresh):
    """The next set-up clears away the leftovers of a failed one."""
    unreachable = {
        "PYTHON": sys.executable,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_FIND_LINKS": "",
        "WHEELHOUSE": "",
        "PIP_RETRIES": "1",
    }
    (fresh / ".venv" / "bin").mkdir(parents=True)
    for name in ("setup.log", "bin/half-installed"):
        (fresh / ".venv" / name).write_text("of a set-up that failed")
    assert "the package index cannot be reached" in set_up(fresh, **unreachable)
    assert not {"ready.json", "bin/half-installed"} & {
        str(path.relative_to(fresh / ".venv")) for path in (fresh / ".venv").rglob("*")
    }
    assert "of a set-up that failed" not in (fresh / ".venv" / "setup.log").read_text()


ASKED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getppid(), signal.SIGUSR1)
signal.sigwait([signal.SIGUSR1])
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("code", "requeued"), [("75", True), ("143", True), ("138", True), ("1", False), ("0", False)]
)
def test_a_slurm_job_that_is_asked_to_stop_goes_back_to_the_queue(code, requeued, root, tmp_path):
    """The command gets Slurm's notice to the job; only a job that can resume is queued again."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "scontrol $*"\n')
    scontrol.chmod(0o755)
    job = 'set -euo pipefail; source "$0"; step "$@"'
    command = [sys.executable, "-S", "-c", ASKED, code]
    words = ("bash", "-c", job, root / "scripts" / "slurm" / "requeue.sh", *command)
    done = run(*words, PATH=f"{tmp_path}:{os.environ['PATH']}", SLURM_JOB_ID="42")
    assert ("scontrol requeue 42" in done.stdout) == requeued
    assert done.returncode == (0 if requeued else int(code)), done.stderr


def test_slurm_templates_ask_to_be_told_and_queued_again(root):
    templates = sorted((root / "scripts" / "slurm").glob("*.sbatch"))
    assert len(templates) == 4
    for template in templates:
        text = template.read_text()
        assert subprocess.run(["bash", "-n", template]).returncode == 0
        assert "#SBATCH --signal=B:USR1@" in text and "#SBATCH --requeue" in text
        [command] = re.findall(r"(scripts/\w+\.sh)", text.partition("\nstep ")[2])
        assert (root / command).is_file()


def test_glue_and_lra_templates_have_a_job_for_each_task(root):
    for name, tasks in (("glue", list(GLUE)), ("lra", read_study("lra").axes["task"].usual)):
        text = (root / "scripts" / "slurm" / f"{name}.sbatch").read_text()
        [found] = re.findall(r"^tasks=\((.*)\)$", text, re.MULTILINE)
        assert sorted(found.split()) == sorted(tasks)
        assert f"--array=0-{len(tasks) - 1}\n" in text


@pytest.mark.parametrize("name", ["glue", "lra"])
def test_flags_of_fairseq_follow_a_templates_own_options(name, root, tmp_path):
    folder = tmp_path / "scripts" / "slurm"
    folder.mkdir(parents=True)
    (folder / "requeue.sh").write_text("step() { printf '%s\\n' \"$@\"; }\n")
    flags = ("--", "--max-update", "9")
    template = root / "scripts" / "slurm" / f"{name}.sbatch"
    done = run("bash", template, "mine", "--out", "X", *flags, cwd=tmp_path, SLURM_ARRAY_TASK_ID="1")
    _, *given = done.stdout.splitlines()
    place = given.index("mine")
    assert given[place : place + 4] == ["mine", "--out", "X", "--task"], done.stderr
    assert "--jobs" in given[place:] and tuple(given[-len(flags) :]) == flags
