"""The fairseq plugin: `--user-dir user_dir` makes its attentions, models and architectures available."""

from importlib import import_module

from . import errors, fairseq_patches

fairseq_patches.apply()
errors.install_excepthook()

for _part in ("criterions", "models", "optim", "tasks"):  # these register with fairseq, once it is repaired
    import_module(f"{__name__}.{_part}")

fairseq_patches.options.WHEN_READ.append(import_module(f"{__name__}.idle_options").note_idle_options)
