"""The compiled kernels for this machine: those that are there if they can run, else a build."""

import argparse
import os
import subprocess
import sys

from pipeline.console import Parser
from pipeline.errors import UserError
from pipeline.files import ROOT

ASK = """
import sys, torch
from causal_linear_attention import extension
name = sys.argv[1]
print(extension.reason("cpp") if name == "cpp" else extension.reason_on_gpu(torch.device("cuda")))
if name == "cuda":
    print("{}.{}".format(*torch.cuda.get_device_capability()))
"""
NAMES = {"cpu": "cpp", "cuda": "cuda"}


def asked(device: str) -> list[str]:
    """Why the kernels of `device` cannot run ("" if they can) and a GPU's compute capability.

    In a process of its own: a build replaces the files that it has loaded.
    """
    command = [sys.executable, "-c", ASK, NAMES[device]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the kernels cannot be asked ({last}); see python -m causal_linear_attention.info")
    return done.stdout.split("\n")


def build_environment(capability: str) -> dict[str, str]:
    """For this GPU alone: every further architecture takes as long again."""
    architecture = "9.0a" if capability == "9.0" else capability
    return {"CAUSAL_LINEAR_ATTENTION_CUDA": "force", "TORCH_CUDA_ARCH_LIST": architecture}


def main() -> None:
    parser = Parser("studies.gpu_kernels", __doc__)
    parser.add_argument("--device", choices=tuple(NAMES), default="cuda", help=argparse.SUPPRESS)
    device = parser.parse_args(sys.argv[1:]).device
    why, *capability = asked(device)
    if not why:
        print(f"the {NAMES[device]} kernels that are here run; nothing is built")
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
