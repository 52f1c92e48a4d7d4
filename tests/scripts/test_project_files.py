"""Files that a forge and its tools read: repeated facts must agree."""

import re
import subprocess
import tomllib

import yaml

import causal_linear_attention


def test_one_version(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    assert citation["version"] == causal_linear_attention.__version__
    assert f"## {causal_linear_attention.__version__}" in (root / "CHANGELOG.md").read_text()


def test_workflow_and_hooks_call_what_exists(root):
    workflow = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text())
    hooks = yaml.safe_load((root / ".pre-commit-config.yaml").read_text())
    calls = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert calls and all((root / call.split()[0]).is_file() for call in calls)
    pinned = (root / "requirements.txt").read_text()
    for hook in hooks["repos"][0]["hooks"]:
        program = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f"\n{ {'lint-imports': 'import-linter'}.get(program, program) }==" in pinned


def test_the_stock_machine_has_the_packages_of_the_dockerfile(root):
    [packages] = re.findall(r'^ARG PACKAGES="(.*)"$', (root / "Dockerfile").read_text(), re.MULTILINE)
    [line] = re.findall(r"^PACKAGES=.*$", (root / ".ci" / "stock_machine").read_text(), re.MULTILINE)
    shown = subprocess.run(
        ["bash", "-euc", f'ROOT=$1; {line}; echo "$PACKAGES"', "test", root],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip().split(",") == packages.split()
