"""Installs the attention operator; the plugin in `user_dir/` is used by its path (`--user-dir`).

Everything else about the package stands in `pyproject.toml`. torch is not imported here, so that the
package installs in any order.
"""

from setuptools import setup

setup(packages=["causal_linear_attention"])
