"""The scripts a person types and the modules behind them.

`lib.sh` calls `python -m lab SCRIPT ARGUMENTS...`. Each module has a `main` that reads `sys.argv`. It
imports nothing outside the standard library before it has read the options, so that --help needs no .venv.
"""

import importlib
import sys

from lab.console import run_command

MODULES = {
    "data-prep/bundled_corpus.sh": "data.bundled_corpus",
    "data-prep/check_sources.sh": "data.check_sources",
    "data-prep/glue.sh": "data.glue",
    "data-prep/images.sh": "data.images",
    "data-prep/lra.sh": "data.lra.prepare",
    "data-prep/roberta.sh": "data.masked_lm",
    "data-prep/text.sh": "data.own_text",
    "data-prep/wikitext.sh": "data.wikitext",
    "scripts/analyse.sh": "figures.analyse",
    "scripts/average_checkpoints.sh": "run.average",
    "scripts/eval_images.sh": "measure.commands",
    "scripts/eval_mlm.sh": "measure.commands",
    "scripts/eval_ppl.sh": "measure.commands",
    "scripts/evaluate_lra.sh": "measure.commands",
    "scripts/export_hf.sh": "export.export_hf",
    "scripts/fault_check.sh": "checks.fault_check",
    "scripts/finetune_glue.sh": "study.finetune_glue",
    "scripts/gpu_check.sh": "checks.gpu_check",
    "scripts/import_hf.sh": "export.import_hf",
    "scripts/make_results.sh": "study.make_results",
    "scripts/predict_glue.sh": "measure.predict_glue",
    "scripts/pretrain_roberta.sh": "run.commands",
    "scripts/quickstart.sh": "study.quickstart",
    "scripts/report.sh": "publish.report",
    "scripts/sample_images.sh": "measure.sample_images",
    "scripts/study.sh": "study.study",
    "scripts/train_images.sh": "run.commands",
    "scripts/train_lm.sh": "run.commands",
    "scripts/train_lra.sh": "run.commands",
    "scripts/train_vit.sh": "run.commands",
}
SLOW = ("run.", "measure.", "export.", "figures.", "checks.", "publish.")
"""Modules that take seconds to import, without a word."""


def main() -> None:
    """Run the command that the first argument names: a script, or a module of this package that none runs.

    The script is `sys.argv[0]` of the command, as a record of a measurement names it.
    """
    del sys.argv[0]
    module = MODULES.get(sys.argv[0], sys.argv[0])
    if sys.stderr.isatty() and module.startswith(SLOW) and not {"-h", "--help"} & set(sys.argv):
        print("loading torch and fairseq ...", file=sys.stderr)
    run_command(lambda: importlib.import_module(f"lab.{module}").main())


if __name__ == "__main__":
    main()
