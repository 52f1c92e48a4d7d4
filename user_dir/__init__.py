"""The fairseq plugin: `--user-dir user_dir` makes its attentions, models and architectures available."""

from importlib import import_module

from . import compat, errors, refusals, stopping

compat.apply()
refusals.apply()
stopping.stop_when_asked()
errors.install_excepthook()

for _part in ("criterions", "models", "optim", "tasks"):  # these register with fairseq, once it is repaired
    import_module(f"{__name__}.{_part}")
import_module(f"{__name__}.models.vocabulary").keep_fingerprints()
import_module(f"{__name__}.loading").apply()
