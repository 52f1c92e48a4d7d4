"""The commands of lab.sh check gpu, on a GPU or, for a dry run, tiny and on the CPU.

Two of them are defined here, because no other script has them:

    python -m lab.checks.gpu_parts kernels cuda
    python -m lab.checks.gpu_parts training WORDS TOKENS CONFIG DATA ...
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.console import run_command
from lab.errors import UserError
from lab.files import ROOT
from lab.run.folder import LOG
from lab.run.process import import_quickly

TRAINED = ("transnormer_t1", "transformer_lm")
PARTS = {
    "correctness": ("kernels", "info", "tests", "triton", "models", "memcheck", "racecheck"),
    "speed": ("anchor", "operator", "lm", "roberta", "loss", *(f"train-{name}" for name in TRAINED)),
}
PYTHON = sys.executable
UPDATES = 500
TRITON = "tests/operator/triton"
MODELS = (
    "tests/attention/every/test_cuda.py",
    "tests/models/test_every_architecture_trains.py",
    "tests/modules/test_fused_loss.py",
)
ENCODERS = ("roberta_softmax", "roberta_lln_diag", "roberta_transnormer_t1")
SPECIAL = 4  # <s>, <pad>, </s>, <unk> lead every dictionary of fairseq's
ROW = 1000
ASK = """
import sys, torch
from causal_linear_attention import extension
name = sys.argv[1]
print(extension.reason("cpp") if name == "cpp" else extension.reason_on_gpu(torch.device("cuda")))
if name == "cuda":
    print("{}.{}".format(*torch.cuda.get_device_capability()))
"""
NAMES = {"cpu": "cpp", "cuda": "cuda"}


@dataclass(frozen=True)
class Part:
    """A command and the seconds it may take.

    Attributes:
        name: name of the part and of its log.
        command: the command, run in the project's folder.
        seconds: its time limit.
        needs: packages that it requires.
        tests: whether it is a pytest run, in which at least one test must pass.
        log: the training log that the command writes, if any.
        alone: whether nothing else may run at the same time, as for a build or a measurement.
    """

    name: str
    command: list[str]
    seconds: int
    needs: tuple[str, ...] = ("torch",)
    tests: bool = False
    log: Path | None = None
    alone: bool = True


def parts(out: Path, data: Path | None, dry: bool = False) -> list[Part]:
    """Every part of both stages, in order."""
    return [*correctness(dry), *speed(out, data, dry)]


def correctness(dry: bool = False) -> list[Part]:
    """Kernels, tests and sanitizers."""
    kernels = [PYTHON, "-m", "lab.checks.gpu_parts", "kernels", "cpu" if dry else "cuda"]
    info = [PYTHON, "-m", "causal_linear_attention.info", "--json", "--no-self-test"]
    once = [PYTHON, "-m", "tests.helpers.one_pass", "cpp" if dry else "cuda"]
    sanitizer = ["compute-sanitizer", "--error-exitcode", "9", "--launch-timeout", "60", "--tool"]
    tests = [
        ("tests", ("torch",), ["tests/operator", f"--ignore={TRITON}"]),
        ("triton", ("torch",), [TRITON]),
        ("models", ("torch", "fairseq"), MODELS),
    ]
    tools = {tool: once if dry else [*sanitizer, tool, *once] for tool in ("memcheck", "racecheck")}
    return [
        Part("kernels", kernels, 300),
        Part("info", info, 40, alone=False),
        *(
            Part(name, pytest(*where, dry=dry), 240, needs, tests=True, alone=False)
            for name, needs, where in tests
        ),
        *(Part(name, command, 240, alone=False) for name, command in tools.items()),
    ]


def pytest(*arguments: str, dry: bool) -> list[str]:
    """The tests that need a GPU, in several processes where pytest-xdist is installed; dry: only named."""
    command = [PYTHON, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider"]
    if dry:
        command.append("--collect-only")
    elif importlib.util.find_spec("xdist"):
        command += ["-n", str(max(1, min(8, (os.cpu_count() or 1) // 2)))]
    return [*command, *arguments]


def speed(out: Path, data: Path | None, dry: bool = False) -> list[Part]:
    """Operator, models and trainings."""
    device = ["--device", "cpu" if dry else "cuda"]
    anchor = [PYTHON, "-m", "benchmarks.operator_cost", "--shapes", "fla", "--out", str(out), *device]
    operator = [PYTHON, "-m", "benchmarks.operator_cost", "--out", str(out), *device, "--dtype", "bfloat16"]
    if dry:
        anchor += ["--quick", "--rounds", "1"]
        operator += ["--quick", "--rounds", "1", "--heads", "1", "--dim", "16", "--lengths", "64"]
    else:
        operator += ["--batch", "8", "--heads", "12", "--lengths", "2048", "8192", "16384", "65536"]
    rounds = ["--rounds", "1", "--bf16", "--time-limit", "120" if dry else "25"]
    lm = [PYTHON, "-m", "benchmarks.lm_cost", *device, *rounds, "--out", str(out / "lm_cost.json")]
    roberta = [PYTHON, "-m", "benchmarks.roberta_cost", *device, *rounds]
    encoders = ENCODERS[-1:] if dry else ENCODERS
    roberta += ["--out", str(out / "roberta_cost.json"), "--architectures", ",".join(encoders)]
    if dry:
        lm += ["--quick", "--architectures", "transnormer_t1", "--lengths", "64"]
        roberta += ["--quick", "--lengths", "64"]
    else:
        lm += ["--architectures", "transnormer_t1,transnormer_t2,transformer_lm"]
        lm += ["--lengths", "2048", "16384"]
        roberta += ["--lengths", "512", "4096"]
    loss = [PYTHON, "-m", "benchmarks.loss_cost", *device, "--out", str(out)]
    loss += ["--tokens", "64", "--width", "8"] if dry else ["--tokens", "32768"]
    loss += ["--vocabulary", *(["300"] if dry else ["33280", "267744"])]
    drawing = ("torch", "matplotlib", "hydra")
    models = (*drawing, "fairseq")
    return [
        Part("anchor", anchor, 200, drawing),  # flash-linear-attention tries many kernels first
        Part("operator", operator, 100, drawing),
        Part("lm", lm, 110, models),
        Part("roberta", roberta, 90, models),
        Part("loss", loss, 90, models),
        *(training(name, data, out, dry) for name in TRAINED),
    ]


def training(name: str, data: Path | None, out: Path, dry: bool = False) -> Part:
    """Updates of 64 sequences of 512 tokens with the launcher's flags for speed, without saving.

    A dry run trains the first model only; the second one's training is the same code with another YAML.
    """
    folder, only_printed = out / f"train-{name}", dry and name != TRAINED[0]
    words = ["200", "20000"] if dry else ["267700", "4000000"]
    command = [PYTHON, "-m", "lab.checks.gpu_parts", "training", *words]
    command += [str(ROOT / "configs" / "wikitext103" / f"{name}.yaml"), str(data or out / "random-words")]
    command += ["--fast", "--gpus", "0" if dry else "1", "--save-dir", str(folder), "--update-freq", "1"]
    command += ["--no-save", "--disable-validation", "--log-interval", "2" if dry else "50"]
    if dry:
        command += ["--max-update", "6", "--batch-size", "2", "--tokens-per-sample", "32"]
        command += ["--decoder-layers", "2", "--decoder-embed-dim", "16", "--decoder-attention-heads", "2"]
        if name == "transformer_lm":
            command += ["--decoder-input-dim", "16", "--decoder-output-dim", "16"]
        command += ["--dry-run"] if only_printed else []
    else:
        command += ["--max-update", str(UPDATES), "--batch-size", "64"]
    log = None if only_printed else folder / LOG
    return Part(f"train-{name}", command, 240, ("torch", "fairseq"), log=log)


def asked(device: str) -> list[str]:
    """Why the kernels of `device` cannot run ("" if they can) and a GPU's compute capability.

    Runs in its own process, because a build replaces the files that it loads.
    """
    command = [sys.executable, "-c", ASK, NAMES[device]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the kernels cannot be queried ({last}); see python -m causal_linear_attention.info")
    return done.stdout.split("\n")


def build_environment(capability: str) -> dict[str, str]:
    """For this GPU alone: every further architecture takes as long again."""
    architecture = "9.0a" if capability == "9.0" else capability
    return {"CAUSAL_LINEAR_ATTENTION_CUDA": "force", "TORCH_CUDA_ARCH_LIST": architecture}


def make_kernels(device: str) -> None:
    """Build the kernels for this machine unless compiled ones already run."""
    why, *capability = asked(device)
    if not why:
        print(f"the {NAMES[device]} kernels already run; nothing to build")
        return
    if device == "cpu":
        raise UserError(f"{why}; a dry run builds nothing")
    print(f"building: {why}", flush=True)
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    environment = {**os.environ, **build_environment(capability[0])}
    if code := subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        raise UserError(f"the build ended with exit code {code}; its messages are above")
    if why := asked(device)[0]:
        raise UserError(f"the kernels were built, but {why}")
    print("built, and they run")


def write_random_words(dest: Path, words: int, tokens: int) -> None:
    """A prepared corpus drawn from a seed, with words about as frequent as a language's (Zipf)."""
    import torch  # imported here, because gpu_check only lists the parts

    from lab.data.preparation import write_rows

    folder = dest.with_name(f"{dest.name}.part")
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    # The rank r of a word has probability 1 / r: the logarithm of r is uniform.
    ranks = torch.rand(tokens, generator=generator).mul_(torch.tensor(float(words)).log()).exp_()
    numbers = ranks.int().clamp_(1, words) + (SPECIAL - 1)
    lines = "".join(f"word{number} 1\n" for number in range(words))
    (folder / "dict.txt").write_text(lines, encoding="utf-8")
    write_rows(folder / "train", numbers.split(ROW), words + SPECIAL)
    folder.rename(dest)


def train(words: str, tokens: str, config: str, data: str, *rest: str) -> None:
    """Run scripts/train_lm.sh, on random words if DATA is missing; `rest` are its flags."""
    from lab.options import train as train_options  # needs packages of fairseq's, which kernels do without

    if not Path(data).exists():
        write_random_words(Path(data), int(words), int(tokens))
    sys.argv = ["scripts/train_lm.sh", config, data, *rest]
    import_quickly("lab.run.commands").main(train_options.training(sys.argv[1:], "lm"))


def main() -> None:
    """One of the two commands."""
    _, name, *words = sys.argv
    {"kernels": make_kernels, "training": train}[name](*words)


if __name__ == "__main__":
    run_command(main)
