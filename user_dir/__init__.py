"""The fairseq plugin: `--user-dir user_dir` makes its attentions, models and architectures available."""

from . import compat, errors, refusals

compat.apply()
refusals.apply()
errors.install_excepthook()

from . import criterions, models, optim, tasks  # noqa: E402, F401  (registers with fairseq, after the repairs)

models.vocabulary.keep_fingerprints()
