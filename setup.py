"""Installs the attention operator; the plugin in `user_dir/` is used by its path (`--user-dir`).

All other metadata is in `pyproject.toml`; `build_kernels.py` builds the kernels. torch is not imported here,
so that the package installs in any order.
"""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))
from build_kernels import AnyPythonWheel, BuildKernels, extensions

setup(
    packages=["causal_linear_attention"],
    package_dir={"": "."},  # an editable installation then also finds user_dir, lab and benchmarks
    package_data={"causal_linear_attention": ["csrc/*.h", "csrc/*/*"]},
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPythonWheel},
)
