# ruff: noqa: UP006, UP007, UP035, UP045  (types are written in fairseq's way)
"""build_fairseq.py: its changes of fairseq's sources, and its refusals."""

import argparse
import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, List, Optional, Union

import pytest

from scripts import build_fairseq
from tests.helpers import forked

SETUP = """\
import sys
from setuptools import Extension, setup
from torch.utils import cpp_extension

version = "0"
if sys.platform == "darwin":
    extra_compile_args = ["-stdlib=libc++", "-O3"]
else:
    extra_compile_args = ["-std=c++11", "-O3"]

extensions = [Extension("fairseq.libbleu", sources=["libbleu.cpp"], extra_compile_args=extra_compile_args)]

extensions.extend(
    [
        cpp_extension.CppExtension("fairseq.libbase", sources=["libbase.cpp"]),
    ]
)
if "CUDA_HOME" in os.environ:
    extensions.extend([cpp_extension.CppExtension("fairseq.libnat_cuda", sources=["edit_dist.cu"])])

cmdclass = {"build_ext": cpp_extension.BuildExtension}

def do_setup():
    setup(
        name="fairseq-fixed",
        version=version,
        ext_modules=extensions,
        cmdclass=cmdclass,
    )

do_setup()
"""
UTILS = """\
import re
from typing import Any


def interpret_dc_type(field_type):
    if field_type == Any:
        return str

    typestring = str(field_type)
    if re.match(
        r"(typing.|^)Union\\[(.*), NoneType\\]$", typestring
    ) or typestring.startswith("typing.Optional"):
        return field_type.__args__[0]
    return field_type
"""

SCORE = """\
    assert args.sys == "-" or os.path.exists(
        args.sys
    ), "System output file {} does not exist".format(args.sys)
    assert os.path.exists(args.ref), "Reference file {} does not exist".format(args.ref)
"""

repaired = pytest.mark.skipif(
    build_fairseq.LABEL not in importlib.metadata.version("fairseq-fixed"), reason="another build of fairseq"
)


@pytest.fixture
def sources(tmp_path) -> Path:
    """The files, cut down to the places that are changed."""
    folder = tmp_path / "fairseq_fixed-0"
    (folder / "fairseq" / "dataclass").mkdir(parents=True)
    (folder / "setup.py").write_text(SETUP)
    (folder / "fairseq" / "dataclass" / "utils.py").write_text(UTILS)
    (folder / "fairseq_cli").mkdir()
    (folder / "fairseq_cli" / "hydra_train.py").write_text("import os\n\nimport hydra\nimport torch\n")
    (folder / "fairseq_cli" / "preprocess.py").write_text("    args = parser.parse_args()\n    main(args)\n")
    (folder / "fairseq_cli" / "score.py").write_text(SCORE)
    (folder / "fairseq" / "tasks").mkdir()
    (folder / "fairseq" / "tasks" / "text_to_speech.py").write_text(
        "try:\n    from tensorboardX import SummaryWriter\nexcept ImportError:\n    pass\n"
    )
    return folder


def test_torchs_extensions_are_left_out(sources, monkeypatch):
    build_fairseq.repair(sources)
    calls = []
    monkeypatch.setattr("setuptools.setup", lambda **given: calls.append(given))
    exec(compile((sources / "setup.py").read_text(), "setup.py", "exec"), {})
    [given] = calls
    assert [extension.name for extension in given["ext_modules"]] == ["fairseq.libbleu"]
    assert given["ext_modules"][0].extra_compile_args == ["-std=c++11", "-O1", "-g0"]
    assert given["cmdclass"] == {}
    assert given["version"] == f"0+{build_fairseq.LABEL}"


def test_types_of_options_are_recognised(sources):
    build_fairseq.repair(sources)
    names: dict[str, Any] = {}
    exec((sources / "fairseq" / "dataclass" / "utils.py").read_text(), names)
    cases = [
        (Optional[int], int),
        (Optional[List[str]], List[str]),
        (Union[int, None], int),
        (int | None, int),
        (List[int], List[int]),
        (str, str),
        (Any, str),
    ]
    for written, meant in cases:
        assert names["interpret_dc_type"](written) == meant


def test_hydras_parser_can_be_built(sources, monkeypatch):
    """On Python 3.14 it failed at the help of one option."""
    build_fairseq.repair(sources)
    monkeypatch.setattr(argparse._ActionsContainer, "_check_help", None, raising=False)
    exec((sources / "fairseq_cli" / "hydra_train.py").read_text(), {})
    from hydra._internal.utils import get_args_parser

    assert "--shell-completion" in get_args_parser()._option_string_actions


def test_other_sources_are_refused(sources):
    path = sources / "fairseq" / "dataclass" / "utils.py"
    path.write_text(path.read_text().replace("typestring", "text"))
    with pytest.raises(build_fairseq.BuildError, match=r"utils\.py .* not as expected"):
        build_fairseq.repair(sources)


def test_an_archive_with_another_sha256_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(build_fairseq, "pip", lambda *words: (tmp_path / "a.tar.gz").write_bytes(b"another"))
    with pytest.raises(build_fairseq.BuildError, match=hashlib.sha256(b"another").hexdigest()):
        build_fairseq.fetch(tmp_path)


def test_the_wheel_replaces_older_ones_and_is_built_once(sources, tmp_path, monkeypatch):
    """pip is asked for the sources and for the wheel; the second time for nothing."""
    asked = []

    def pip(word, *words, **environment):
        asked.append(word)
        if word == "download":
            folder = words[words.index("--dest") + 1]
            folder.mkdir()
            with tarfile.open(folder / "fairseq_fixed-0.tar.gz", "w:gz") as archive:
                archive.add(sources, sources.name)
            digest = hashlib.sha256((folder / "fairseq_fixed-0.tar.gz").read_bytes()).hexdigest()
            monkeypatch.setattr(build_fairseq, "SHA256", digest)
        else:
            assert build_fairseq.LABEL in (words[-1] / "setup.py").read_text()
            assert "parallel" in Path(environment["DIST_EXTRA_CONFIG"]).read_text()
            folder = words[words.index("--wheel-dir") + 1]
            folder.mkdir()
            (folder / f"fairseq_fixed-0.12.3.1+{build_fairseq.LABEL}-{tags()}.whl").write_bytes(b"wheel")

    monkeypatch.setattr(build_fairseq, "pip", pip)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "fairseq_fixed-0.12.3.1+repaired0-cp311-cp311-linux_x86_64.whl").touch()
    for _ in range(2):
        assert build_fairseq.build(wheels).read_bytes() == b"wheel"
    assert asked == ["download", "wheel"]
    assert len(list(wheels.iterdir())) == 1


def tags() -> str:
    from packaging.tags import sys_tags

    return str(next(tag for tag in sys_tags() if "linux_" in tag.platform and "many" not in tag.platform))


def test_the_wheel_satisfies_the_pin():
    assert re.fullmatch(r"fairseq-fixed==[\d.]+\+repaired[0-9a-f]{8}", build_fairseq.repaired())


def test_a_failure_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    script = Path(build_fairseq.__file__)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "file" / "wheels"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_this_environments_fairseq_recognises_optional_types():
    from fairseq.dataclass.utils import interpret_dc_type

    assert importlib.metadata.version("fairseq-fixed").startswith("0.12.3.1")
    assert interpret_dc_type(Optional[int]) is int


@repaired
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("preprocess --only-source --trainpref none --destdir new", "no file none; check --trainpref"),
        (
            "preprocess --only-source --trainpref text --validpref text,no --destdir new",
            "check --validpref",
        ),
        ("preprocess -s a -t b --trainpref text --destdir new", "no file text.a; check --trainpref"),
        ("preprocess --only-source --srcdict none --destdir new", "no file none; check --srcdict"),
        ("preprocess --only-source --destdir new", "give --trainpref or --srcdict"),
        ("preprocess --only-source --trainpref text --destdir text", "--destdir text is a file"),
        ("preprocess --only-source --trainpref text --destdir used", "keep it with --srcdict used/dict.txt"),
        ("score --sys none --ref text", "no file none; check --sys"),
        ("score --sys text --ref none", "no file none; check --ref"),
    ],
)
def test_commands_without_the_plugin_end_in_one_sentence(command, message, tmp_path):
    (tmp_path / "text").write_text("a b\n")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "dict.txt").write_text("a 1\n")
    name, *words = command.split()
    done = forked.run([sys.executable, "-m", f"fairseq_cli.{name}", *words], cwd=tmp_path)
    [said] = done.stderr.splitlines()
    assert done.returncode == 1 and said.startswith("error: ") and message in said
    assert not (tmp_path / "new").exists()


@repaired
def test_no_command_asks_for_tensorboardx():
    from fairseq.tasks import text_to_speech

    assert text_to_speech.SummaryWriter is not None
