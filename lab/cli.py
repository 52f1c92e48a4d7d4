"""The command `scripts/lab.sh VERB ...`, and the scripts that call one of its verbs.

`scripts/lib.sh` calls `python -m lab SCRIPT WORDS...`; inside the environment `python -m lab VERB ...` does
the same. The options of a verb are read by a module without torch, so that `--help` and mistakes end at
once; then the module that does the work is imported, and its `main` gets them.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile

from lab.console import run_command, say_loading
from lab.errors import UserError, suggestion
from lab.run.process import import_quickly

LAB = "scripts/lab.sh"


@dataclass(frozen=True)
class Command:
    """A verb.

    Args:
        module: in this package; its `main` does the work.
        about: one line of the help.
        script: the name of a shorter command for the same, where there is one.
        options: the function of lab/options that reads the command line, with `kind` if there is one; without
            it, `parse` of the module itself, which then is quick to import.
        old: the script in the previous release, without folder and ending.
        quick: whether its module is imported without torch and fairseq, which takes seconds.
    """

    module: str
    about: str
    script: str = ""
    options: str = ""
    kind: str = ""
    old: str = ""
    quick: bool = False

    def parse(self, words: Sequence[str]) -> Namespace:
        """The options on the command line, which `main` gets."""
        reader = f"options.{self.options}" if self.options else f"{self.module}.parse"
        place, _, name = reader.rpartition(".")
        return getattr(import_module(f"lab.{place}"), name)(words, *filter(None, [self.kind]))


def _prepare(module: str, name: str, about: str) -> Command:
    return Command(f"data.{module}", about, f"data-prep/{name}.sh", f"prepare.{name}")


COMMANDS = {
    "quickstart": Command(
        "commands.quickstart",
        "set-up, a small corpus, three language models trained and compared",
        "scripts/quickstart.sh",
        quick=True,
    ),
    "prepare bundled_corpus": _prepare(
        "bundled_corpus", "bundled_corpus", "prepare the corpus that comes with Python"
    ),
    "prepare wikitext": _prepare("causal_lm", "wikitext", "prepare WikiText-2 or WikiText-103"),
    "prepare text": _prepare("causal_lm", "text", "prepare your own text for language models"),
    "prepare roberta": _prepare("masked_lm", "roberta", "prepare WikiText or your own text for RoBERTa"),
    "prepare glue": _prepare("glue", "glue", "prepare GLUE"),
    "prepare lra": _prepare("lra.prepare", "lra", "prepare Long Range Arena"),
    "prepare images": _prepare("images", "images", "prepare digits, MNIST, CIFAR-10, or Dogs vs Cats"),
    "train lm": Command(
        "run.commands", "train a language model from a YAML", "scripts/train_lm.sh", "train.training", "lm"
    ),
    "train roberta": Command(
        "run.commands",
        "pre-train an encoder from a YAML",
        "scripts/pretrain_roberta.sh",
        "train.training",
        "roberta",
    ),
    "train lra": Command(
        "run.commands",
        "train on a task of Long Range Arena",
        options="train.training",
        kind="lra",
        old="train_lra",
    ),
    "train images": Command(
        "run.commands",
        "train a model of images byte by byte",
        options="train.training",
        kind="images",
        old="train_images",
    ),
    "train vit": Command(
        "run.commands", "train a Vision Transformer", options="train.training", kind="vit", old="train_vit"
    ),
    "finetune": Command(
        "commands.finetune_glue",
        "fine-tune an encoder on GLUE over learning rates and seeds",
        "scripts/finetune_glue.sh",
        "train.finetuning",
    ),
    "average": Command(
        "commands.average",
        "average the weights of several checkpoints, or of a run's last ones",
        options="models.average",
        old="average_checkpoints",
    ),
    "evaluate ppl": Command(
        "measure.commands",
        "measure the perplexity of a language model, per token and per word",
        "scripts/eval_ppl.sh",
        "evaluate.perplexity",
    ),
    "evaluate mlm": Command(
        "measure.commands",
        "measure the masked-LM perplexity of an encoder",
        options="evaluate.evaluation",
        kind="mlm",
        old="eval_mlm",
    ),
    "evaluate lra": Command(
        "measure.commands",
        "measure the accuracy of a model of Long Range Arena",
        options="evaluate.evaluation",
        kind="lra",
        old="evaluate_lra",
    ),
    "evaluate images": Command(
        "measure.commands",
        "measure an image model's bits per dimension, or a Vision Transformer's accuracy",
        options="evaluate.evaluation",
        kind="images",
        old="eval_images",
    ),
    "predict": Command(
        "measure.glue", "predict with a fine-tuned encoder", options="evaluate.prediction", old="predict_glue"
    ),
    "sample": Command(
        "measure.pixels", "draw or complete images", options="evaluate.drawing", old="sample_images"
    ),
    "study": Command(
        "study.cli",
        "run an experiment that a YAML declares: cells, tables, verdicts, plots",
        "scripts/study.sh",
        quick=True,
    ),
    "figures": Command(
        "figures.analyse", "analyse attention: the papers' analyses and figures", old="analyse", quick=True
    ),
    "report": Command("publish.report", "write an HTML report of your runs", old="report", quick=True),
    "costs": Command("commands.costs", "measure the stale committed costs again, on a CPU", quick=True),
    "results": Command(
        "commands.make_results",
        "bring the documents up to date with the committed results",
        options="results.results",
        old="make_results",
    ),
    "export": Command(
        "export.export_hf", "export a model for `transformers`", options="models.export", old="export_hf"
    ),
    "import": Command(
        "export.import_hf",
        "start from RoBERTa weights of `transformers`",
        options="models.import_hf",
        old="import_hf",
    ),
    "check gpu": Command(
        "checks.gpu_check",
        "build, test and measure the CUDA kernels, and the models on a GPU",
        old="gpu_check",
        quick=True,
    ),
    "check faults": Command(
        "checks.fault_check", "break small runs and count the survivors", old="fault_check", quick=True
    ),
    "check sources": Command(
        "data.published",
        "test the download addresses",
        "data-prep/check_sources.sh",
        "prepare.addresses",
        quick=True,
    ),
}
"""Commands by the words after `scripts/lab.sh`; all further words are options of the command."""

SCRIPTS = {command.script: words for words, command in COMMANDS.items() if command.script}
OLD = {f"scripts/{command.old}.sh": words for words, command in COMMANDS.items() if command.old}
"""Names of the previous release, each a link to `scripts/lab.sh`."""


def name_of(words: str) -> str:
    """The command as the documents name it, such as `scripts/lab.sh export`."""
    return COMMANDS[words].script or f"{LAB} {words}"


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command at the beginning of `words`, "" for the list of commands, and the words of its options.

    Raises UserError for an unknown command.
    """
    first, *rest = words or [LAB]
    if first in OLD:
        print(f"{first} is now {name_of(OLD[first])}; the next release removes the old name", file=sys.stderr)
    if first in OLD or first in SCRIPTS:
        return {**OLD, **SCRIPTS}[first], rest
    words = rest if first == LAB else list(words)
    for length in (1, 2):
        if (name := " ".join(words[:length])) in COMMANDS:
            return name, words[length:]
    if not words or words[0] in ("-h", "--help"):
        return "", []
    verbs = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    if words[0] not in verbs:
        raise UserError(f"there is no verb {words[0]}{suggestion(words[0], verbs)}; see {LAB} --help")
    if words[1:2] in (["-h"], ["--help"]):
        return "", words[:1]
    kinds = [name.split()[1] for name in COMMANDS if name.startswith(f"{words[0]} ")]
    raise UserError(f"say what to {words[0]}: {', '.join(kinds)}; see {LAB} {words[0]} --help")


def list_commands(verb: str = "") -> str:
    """The help of `scripts/lab.sh`, or of one of its verbs that has kinds."""
    shown = {name: command for name, command in COMMANDS.items() if not verb or name.split()[0] == verb}
    width = max(map(len, shown)) + 2
    rows = (
        f"  {name:{width}}{command.about}" + (f" ({command.script})" if command.script else "")
        for name, command in shown.items()
    )
    setup = "" if verb else f"  {'setup':{width}}make .venv, as the first call of any other verb does\n"
    what = f"{verb} KIND" if verb else "VERB"
    return f"usage: {LAB} {what} ...\n\n{setup}" + "\n".join(rows) + "\n\nEach takes --help."


def run() -> None:
    """Run the command that the words name; records of measurements name it as the documents do."""
    name, words = find(sys.argv[1:])
    if not name:
        print(list_commands(*words))
        return
    command = COMMANDS[name]
    if {"-h", "--help"} & set(words):
        words = [*takewhile(lambda word: not word.startswith("-"), words), "--help"]
    sys.argv = [name_of(name), *words]
    options = command.parse(words)
    if not command.quick:
        say_loading()
    import_quickly(f"lab.{command.module}").main(options)


def main() -> None:
    """Run it as any command: a mistake ends in one sentence."""
    run_command(run)
