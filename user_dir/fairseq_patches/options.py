"""fairseq's command line: its options, and messages for mistakes."""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches

from fairseq import options
from fairseq.dataclass import utils
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from omegaconf import MISSING
from omegaconf.errors import ConfigKeyError, ValidationError

from ..checks.options import fill_in_options, nearest
from ..checks.same_settings import ALLOWED
from ..checks.settings import check_settings
from ..checks.training import check_task_of_model, is_in_torchrun
from ..errors import UserError
from .replacing import replaces

FEW = 6  # choices that fit a line
Modify = Callable[[argparse.ArgumentParser], None]
WHEN_READ: list[Callable[[argparse.Namespace, Sequence[str]], None]] = []
"""What else looks at a command line that was read, and at its words: parts that know the models."""


def apply() -> None:
    """The wrappers of fairseq's parser, and of what completes the settings of fairseq-hydra-train."""

    @replaces(options, "parse_args_and_arch")
    def parse_args_and_arch(parse, parser, input_args=None, *args, modify_parser=None, **kwargs):
        given = sys.argv[1:] if input_args is None else list(input_args)
        words = [word for word in given if word not in ("-h", "--help")]
        say_mistakes_in_a_sentence(parser, words)
        add_allow_changed(parser)
        if len(words) < len(given):
            modify_parser = show_options_in_help(modify_parser)
        with explained_arguments(parser, asks_for_help=len(words) < len(given)):
            parsed = parse(parser, words, *args, modify_parser=modify_parser, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        keep_cuda_with_bf16(namespace, given)
        keep_one_process_on_the_cpu(namespace, given)
        note_allowed(namespace)
        fill_in_options(namespace, getattr(namespace, "arch", None))
        for look_at in WHEN_READ:
            look_at(namespace, words)
        check_required(namespace)
        refuse_interpolation(namespace)
        check_given(namespace, given)
        check_settings(namespace)
        check_task_of_model(namespace)
        return parsed

    @replaces(utils, "merge_with_parent")
    def merge_with_parent(merge, defaults, cfg, *args, **kwargs):
        with explained_settings(defaults, cfg.get("_name")):
            return merge(defaults, cfg, *args, **kwargs)


def add_allow_changed(parser: argparse.ArgumentParser) -> None:
    """`--allow-changed` for fairseq's own models, too; the plugin's have it among their settings."""
    if "--arch" in parser._option_string_actions and "--allow-changed" not in parser._option_string_actions:
        parser.add_argument(
            "--allow-changed",
            default="",
            metavar="NAMES",
            help="comma-separated settings that may differ from those of the checkpoint that training starts "
            "from, such as decoder_attention",
        )


def note_allowed(parsed: argparse.Namespace) -> None:
    """Keep it where processes that fairseq spawns find it: fairseq's own models cannot hold it."""
    if hasattr(parsed, "allow_changed"):
        os.environ[ALLOWED] = parsed.allow_changed


def keep_cuda_with_bf16(parsed: argparse.Namespace, given: Sequence[str]) -> None:
    """fairseq takes `--bf16` for a request of a TPU and then leaves the GPU unused."""
    if getattr(parsed, "bf16", False):
        parsed.tpu = "--tpu" in given


def keep_one_process_on_the_cpu(parsed: argparse.Namespace, given: Sequence[str]) -> None:
    """Without a number of processes, fairseq would start one for each GPU, also with `--cpu`."""
    named = {word.partition("=")[0] for word in given}
    several = named & {"--distributed-world-size", "--distributed-init-method"} or is_in_torchrun()
    if getattr(parsed, "cpu", False) and not several:
        parsed.distributed_world_size = 1


def check_given(parsed: argparse.Namespace, given: Sequence[str]) -> None:
    """UserError for a `--buffer-size` of 0, which is fairseq's default and means 1, but does not say so."""
    named = any(word.partition("=")[0] == "--buffer-size" for word in given)
    if named and not getattr(parsed, "buffer_size", 1):
        raise UserError("--buffer-size is 0; it must be a whole number from 1 up")


def show_options_in_help(modify_parser: Modify | None) -> Modify:
    """fairseq's `--help` ends before the options of the task, model and criterion on the line are known.

    This prints it once they are, in place of `modify_parser`, which fairseq calls before and after.
    """
    calls = []

    def modify(parser: argparse.ArgumentParser) -> None:
        calls.append(parser)
        if modify_parser is not None:
            modify_parser(parser)
        if len(calls) == 2:
            parser.print_help()
            parser.exit()

    return modify


@contextlib.contextmanager
def explained_arguments(parser: argparse.ArgumentParser, asks_for_help: bool) -> Iterator[None]:
    """fairseq refuses two precisions, and no `--arch` or `--task`, in tracebacks that hide the cause."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("Cannot combine --fp16 and --tpu"):
            raise
        raise UserError("--fp16 and --bf16 (or --tpu) exclude each other; give one of them") from None
    except (RuntimeError, KeyError) as error:
        if error.args not in ((), (None,)):
            raise
        if asks_for_help:
            parser.print_help()
            parser.exit()
        if error.args:
            raise UserError("--task is missing; name the model's, such as --task language_modeling") from None
        raise UserError("--arch is missing; name an architecture, such as --arch transnormer_t1") from None


@contextlib.contextmanager
def explained_settings(defaults: object, kind: str | None) -> Iterator[None]:
    """A misspelt or badly typed setting of the plugin's in a YAML ends hydra in a traceback."""
    known = [name for name in getattr(defaults, "__dataclass_fields__", ()) if name != "_name"]
    try:
        yield
    except ConfigKeyError as error:
        near = ", ".join(nearest(str(error.key), known))
        raise UserError(f"{kind} has no setting {error.key!r}; the nearest are {near}") from None
    except ValidationError as error:
        raise UserError(f"the setting {error.full_key} of {kind} is wrong: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """What an error says, without the lines on where it was raised."""
    return str(error).partition("\n")[0]


def refuse_interpolation(parsed: argparse.Namespace) -> None:
    """UserError for an option with `${...}`, which hydra, through which fairseq passes it, would fill in."""
    for name, value in vars(parsed).items():
        if isinstance(value, str) and "${" in value:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} has a ${{...}}, which fairseq fills in; write the name itself")


def check_required(parsed: argparse.Namespace) -> None:
    """Without an option that a schedule or tokeniser requires, fairseq ends in a traceback of hydra's."""
    for kind, known in REGISTRIES.items():
        choice = getattr(parsed, kind, None)
        for field in getattr(known["dataclass_registry"].get(choice), "__dataclass_fields__", {}).values():
            optional = field.default is None or field.type not in (int, float, str)
            if not optional and getattr(parsed, field.name, "") in (None, MISSING):
                raise UserError(
                    f"--{kind.replace('_', '-')} {choice} needs --{field.name.replace('_', '-')}; add it"
                )


def say_mistakes_in_a_sentence(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """fairseq answers a mistyped option with four screens of usage, a mistyped name with all names."""
    if "error" in vars(parser):
        return

    def error(message: str) -> None:
        # The types of fairseq's lists are lambdas, whose name says nothing.
        message = message.replace("invalid <lambda> value:", "expected numbers such as 1 or 1,2, not")
        hint = hint_for_choice(message) or message + hint_for_option(message, parser, words)
        raise UserError(f"{hint}; see {parser.prog} --help")

    parser.error = error


def hint_for_choice(message: str) -> str | None:
    """argparse's message about an unknown choice, with the nearest choices instead of all."""
    found = re.match(
        r"argument (?:\S+/)?(--[\w-]+)\S*: invalid choice: '?(.*?)'? \(choose from (.*)\)", message
    )
    if found is None:
        return None
    option, value, choices = found.groups()
    known = re.findall(r"[^\s,']+", choices)
    if len(known) <= FEW:
        return f"{option} is {value!r}; choose one of {', '.join(known)}"
    return f"{option} is {value!r}, which is unknown; the nearest are {', '.join(nearest(value, known))}"


def hint_for_option(message: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Which architectures have the first of the unrecognized arguments, or else which options are near it."""
    if re.search(r"^unrecognized arguments: .*\.pt\b", message) and "--path" in words:
        return (
            "; several checkpoints are one word, with colons between: --path A.pt:B.pt, or --path 'run/*.pt'"
        )
    unknown = re.search(r"^unrecognized arguments: .*?(--[\w-]+)", message)
    if unknown is None:
        return ""
    field = unknown[1].removeprefix("--").replace("-", "_")
    owners = [
        arch
        for arch, model in ARCH_MODEL_NAME_REGISTRY.items()
        if field in getattr(MODEL_DATACLASS_REGISTRY.get(model), "__dataclass_fields__", ())
    ]
    arch = re.search(r"^(?:--arch|-a)[=\n](.+)$", "\n".join(words), re.MULTILINE)
    if owners:
        names = ", ".join(nearest(arch[1] if arch else "", owners))
        this = f"--arch {arch[1]}" if arch else "this command"
        return f"; {this} lacks {unknown[1]}, which {names} and others have"
    near = get_close_matches(unknown[1], parser._option_string_actions, 1, 0.8)
    return f"; did you mean {near[0]}?" if near else ""
