"""The options of the commands that prepare data, and of the one that tests the download addresses."""

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lab.console import Parser, count, path
from lab.data.lra.tasks import PIPELINES, SKYFORMER
from lab.data.prepared import BYTE_PAIRS, PIECES, WORDS
from lab.data.published import CORPORA, OWN_TEXT, TEXTS, URL_VARIABLE, archive_url
from lab.errors import UserError
from lab.glue_tasks import TASKS
from lab.provenance import usable_cores

VOCABULARY, BUNDLED_VOCABULARY = 4000, 2000
"""Pieces learnt unless --vocab-size says otherwise: from a text, and from the corpus in Python."""
IMAGE_SETS = ("digits", "mnist", "cifar10", "dogs-vs-cats")
BUNDLED = """\
Prepare a small English corpus that needs no download: CPython's own language reference.

Every CPython ships the reference as `pydoc_data.topics` (about 65,000 words, for `help("for")`).
Each section of its prose becomes a document, repeated passages are dropped, and the splits are made of whole
documents.
"""
WIKITEXT = """\
Prepare WikiText-2 or WikiText-103 for fairseq: find or download, check, tokenise, binarise.
"""
WIKITEXT_SOURCES = f"""
The source is --from (a folder, or a zip), else --url, else ${URL_VARIABLE}, else
  wikitext-2     {archive_url(TEXTS["wikitext-2"])}
  wikitext-103   {archive_url(TEXTS["wikitext-103"])}
which the corpus's first author maintains; the published address at s3.amazonaws.com is dead. Files from
any source must have the published word counts and checksums. Run the same command again to resume an
interrupted download.
"""
TEXT = """\
Prepare a text of your own for language models: check, tokenise, binarise.

The folder of --from holds train.txt, valid.txt and test.txt in UTF-8, each plain or as .gz. Every line
becomes a row that ends with `</s>`; white space within a line becomes one space. By default the tokens are
sentencepiece's, learnt from train.txt: a character without its own piece is spelt in bytes, so that no
text has unknown tokens. docs/own_text.md shows what to do next.
"""
ROBERTA = """\
Prepare a text for pre-training RoBERTa models: check, cut into documents, tokenise, binarise.

Documents stay whole, with an empty line between them, as fairseq's masked_lm task expects for
--sample-break-mode complete or complete_doc. The tokens are RoBERTa's (GPT-2's byte-level pairs and
fairseq's dictionary: 50,265 entries with the mask, which fairseq adds) or sentencepiece's.
"""
ROBERTA_CORPORA = """
corpora:
  wikitext-103-raw, wikitext-2-raw   WikiText with its rare words, on which the papers train RoBERTa
  wikitext-103, wikitext-2           WikiText with <unk> for rare words, as for language models
  text                               your own text, in the folder given with --from; an empty line
                                     ends a document
Without --from or --url the command downloads WikiText; without --gpt2-bpe it downloads RoBERTa's
vocabulary to the folder gpt2_bpe beside --dest. It checks both against the published files. Run the same
command again to resume after an interruption.
"""
GLUE = """\
Prepare GLUE tasks for fine-tuning RoBERTa models: check, encode with the model's tokeniser, binarise.

FOLDER holds a folder for each task with the files of the original download (train.tsv, dev.tsv, test.tsv;
MNLI dev_matched.tsv …; also .tsv.gz; MRPC also as msr_paraphrase_*.txt with mrpc_dev_ids.tsv). Each
task becomes a folder in --dest that fairseq's sentence_prediction task reads.
"""
GLUE_TASKS = f"""
tasks: {", ".join(TASKS)}

Each split must have the published number of examples. --partial accepts any number and a missing dev split,
and reads samples where train.tsv is missing (train.sample.json and dev.sample.json, else train.kshot.tsv and
dev.kshot.tsv, all parts of the published train file); preparation.json then says "partial": true. Do not
compare results on such data with published ones. Labels are classes in the order of label/dict.txt; STS-B's
scores are divided by 5. Run the same command again to resume after an interruption: it skips finished tasks.
"""
LRA = """\
Prepare a task of the Long Range Arena for --task lra, from its original files or its generator.

TASK is listops, text, retrieval, image, pathfinder, path-x, or all. The result is a folder in --dest:
listops, text, retrieval (Skyformer's pipeline: bytes), listops-state-space, text-state-space,
retrieval-state-space (--pipeline state-space: characters, an end token), listops-no-brackets, and
image, pathfinder, path-x (pixels, for both pipelines).

    data-prep/lra.sh listops --generate --dest data/lra
    data-prep/lra.sh text --from aclImdb_v1.tar.gz --dest data/lra
    data-prep/lra.sh image --url https://... --dest data/lra
    data-prep/lra.sh all --from ~/Downloads/lra --dest data/lra
"""
LRA_SOURCES = """
--from takes the original archive (lra_release.gz for listops, retrieval, pathfinder, path-x;
aclImdb_v1.tar.gz for text; cifar-10-binary.tar.gz for image), a folder with the unpacked files, or a
folder with the archives. A finished folder stays as it is. Run the same command again to resume after an
interruption: generated data block by block, other data task by task.
"""
IMAGES = """\
Prepare images for --task pixels and image_classification: memory-mapped arrays and a JSON file.

SET is digits (8 x 8, part of scikit-learn, no download), mnist (a folder with the four idx files, compressed
or not), cifar10 (cifar-10-binary.tar.gz or its folder) or dogs-vs-cats (kagglecatsanddogs_5340.zip or
train.zip, or the folder of one of them; the command skips and lists unreadable images). valid is the last
5,000 images of train (a tenth if there are fewer than 50,000); for digits 250 images, for Dogs vs Cats a
fifth, which is also its test split.

    data-prep/images.sh digits --dest data/images/digits
    data-prep/images.sh mnist --from ~/Downloads --dest data/images/mnist
"""
ADDRESSES = """\
Check that the addresses of the corpora still answer; nothing is downloaded.

Prints a line per address of data-prep/sources.json: ok, CHANGED (not the published size) or DEAD, and
what to do. The exit code is 0 only if all are ok.
"""


def add_dest(parser: Parser) -> None:
    """--dest, the same for every command."""
    parser.add_argument(
        "--dest", type=_absolute, required=True, metavar="FOLDER", help="folder of the result"
    )


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(path(text)))


def add_places(parser: Parser, files: str) -> None:
    """The options that say where the text comes from, in which `files`, and where the result goes."""
    add_dest(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="PATH",
        help=f"folder with {files}, each plain or as .gz; or the published zip",
    )
    source.add_argument("--url", help="address of the zip, which is downloaded beside --dest")
    parser.add_argument(
        "--allow-unverified",
        action="store_true",
        help="warn instead of refusing when counts or checksums of WikiText differ from the published ones",
    )


def read_with_tokenizer(parser: Parser, words: Sequence[str], usual: str) -> Namespace:
    """Add the tokeniser's options, by default the `usual` one, and parse `words`."""
    parser.add_argument(
        "--tokenizer",
        choices=(WORDS, PIECES),
        help=f"the words of the train split, or pieces learnt from it (default: {usual})",
    )
    parser.add_argument(
        "--vocab-size",
        type=count,
        metavar="N",
        help=f"size of fairseq's dictionary with sentencepiece (default {VOCABULARY}); "
        "--tokenizer words takes all words of the train split",
    )
    parser.add_argument(
        "--vocabulary-from",
        type=Path,
        metavar="FOLDER",
        help="use the vocabulary of this prepared folder, whose models can then read the result",
    )
    arguments = parser.parse_args(words)
    if arguments.vocabulary_from and (arguments.tokenizer or arguments.vocab_size):
        parser.error("--vocabulary-from settles the tokeniser: give no --tokenizer or --vocab-size")
    if not arguments.vocabulary_from:
        arguments.tokenizer = arguments.tokenizer or usual
    if arguments.vocab_size and arguments.tokenizer != PIECES:
        parser.error("--vocab-size goes with --tokenizer sentencepiece")
    arguments.vocab_size = arguments.vocab_size or VOCABULARY
    return arguments


def bundled_corpus(words: Sequence[str]) -> Namespace:
    """The options of `prepare bundled_corpus`."""
    parser = Parser("data-prep/bundled_corpus.sh", BUNDLED)
    add_dest(parser)
    parser.add_argument(
        "--vocab-size",
        type=count,
        default=BUNDLED_VOCABULARY,
        metavar="N",
        help="size of fairseq's dictionary of sentencepiece pieces (default %(default)s)",
    )
    return parser.parse_args(words)


def wikitext(words: Sequence[str]) -> Namespace:
    """The options of `prepare wikitext`."""
    parser = Parser("data-prep/wikitext.sh", WIKITEXT, epilog=WIKITEXT_SOURCES)
    parser.add_argument("corpus", choices=[name for name in TEXTS if not name.endswith("-raw")])
    add_places(parser, "wiki.{train,valid,test}.tokens or {train,valid,test}.txt")
    return read_with_tokenizer(parser, words, WORDS)


def text(words: Sequence[str]) -> Namespace:
    """The options of `prepare text`."""
    parser = Parser("data-prep/text.sh", TEXT)
    parser.add_argument(
        "--from", dest="source", type=Path, required=True, metavar="FOLDER", help="folder with the text"
    )
    add_dest(parser)
    parser.set_defaults(corpus=OWN_TEXT, url=None, allow_unverified=False)
    return read_with_tokenizer(parser, words, PIECES)


def roberta(words: Sequence[str]) -> Namespace:
    """The options of `prepare roberta`."""
    parser = Parser("data-prep/roberta.sh", ROBERTA, epilog=ROBERTA_CORPORA)
    parser.add_argument("corpus", choices=[*TEXTS, OWN_TEXT])
    add_places(
        parser,
        "wiki.{train,valid,test}.raw, wiki.{train,valid,test}.tokens or {train,valid,test}.txt",
    )
    parser.add_argument(
        "--tokenizer",
        choices=(BYTE_PAIRS, PIECES),
        default=BYTE_PAIRS,
        help="RoBERTa's own (default), or pieces learnt from the train split",
    )
    parser.add_argument(
        "--vocab-size",
        type=count,
        metavar="N",
        help=f"size of fairseq's dictionary with sentencepiece, without the mask (default {VOCABULARY})",
    )
    parser.add_argument(
        "--gpt2-bpe", type=Path, metavar="FOLDER", help="folder with encoder.json, vocab.bpe and dict.txt"
    )
    arguments = parser.parse_args(words)
    if arguments.corpus == OWN_TEXT and not arguments.source:
        parser.error("your own text needs --from FOLDER, the folder with train.txt, valid.txt and test.txt")
    if arguments.tokenizer == BYTE_PAIRS and arguments.vocab_size:
        parser.error("--vocab-size goes with --tokenizer sentencepiece")
    if arguments.tokenizer != BYTE_PAIRS and arguments.gpt2_bpe:
        parser.error("--gpt2-bpe goes with --tokenizer gpt2")
    arguments.vocab_size = arguments.vocab_size or VOCABULARY
    return arguments


def glue(words: Sequence[str]) -> Namespace:
    """The options of `prepare glue`."""
    parser = Parser("data-prep/glue.sh", GLUE, epilog=GLUE_TASKS)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="the original files, a folder for each task"
    )
    parser.add_argument(
        "--tokenizer-from",
        required=True,
        type=Path,
        metavar="PREPARED",
        help="the folder made by roberta.sh that the model was pre-trained on",
    )
    add_dest(parser)
    parser.add_argument(
        "--task",
        action="append",
        metavar="TASK",
        help="prepare this task only; may be repeated (default: all tasks in FOLDER)",
    )
    parser.add_argument(
        "--partial", action="store_true", help="accept parts and samples of the published files"
    )
    return parser.parse_args(words)


def add_rows(parser: Parser) -> None:
    """The options for the rows of Long Range Arena: their form and number."""
    parser.add_argument(
        "--pipeline", choices=PIPELINES, default=SKYFORMER, help="tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--listops-drop-close-brackets",
        action="store_false",
        dest="close_brackets",
        help="leave `]` out as Skyformer's data does; the expressions then no longer have a value",
    )
    parser.add_argument(
        "--valid-fraction",
        type=float,
        default=0.1,
        metavar="F",
        help="share of text's train reviews that becomes valid; 0: no valid split (default: %(default)s)",
    )
    parser.add_argument(
        "--length",
        type=count,
        metavar="N",
        help="cut text's reviews after N bytes or characters, into the folder text-N (default: the "
        "benchmark's 4,000, state-space 4,096)",
    )
    parser.add_argument(
        "--seed", type=int, default=42, help="random seed of generators and splits (default: %(default)s)"
    )
    parser.add_argument(
        "--examples", type=int, metavar="N", help="examples to generate (default: as many as published)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=usable_cores(),
        metavar="N",
        help="processes of the generators; affects only the time (default: one per core)",
    )
    parser.add_argument(
        "--skip-empty-images",
        action="store_true",
        dest="skip_empty",
        help="skip zero-byte images of Pathfinder",
    )


def lra(words: Sequence[str]) -> Namespace:
    """The options of `prepare lra`."""
    parser = Parser("data-prep/lra.sh", LRA, epilog=LRA_SOURCES)
    parser.add_argument(
        "task", metavar="TASK", help="listops, text, retrieval, image, pathfinder, path-x, all"
    )
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument(
        "--from", dest="source", type=Path, metavar="PATH", help="archive or folder (see below)"
    )
    origin.add_argument("--url", metavar="URL", help="address of the archive, downloaded to FOLDER/downloads")
    origin.add_argument(
        "--generate", action="store_true", help="generate listops, pathfinder or path-x, without files"
    )
    add_dest(parser)
    parser.add_argument(
        "--partial",
        action="store_true",
        help="accept other files than the whole published ones, such as a sample; every record then says so",
    )
    add_rows(parser)
    return parser.parse_args(words)


def images(words: Sequence[str]) -> Namespace:
    """The options of `prepare images`."""
    parser = Parser("data-prep/images.sh", IMAGES)
    parser.add_argument("set", choices=IMAGE_SETS, metavar="SET", help=", ".join(IMAGE_SETS))
    parser.add_argument("--from", dest="source", type=Path, metavar="PATH", help="folder or archive")
    add_dest(parser)
    parser.add_argument(
        "--partial",
        action="store_true",
        help="accept files that are not the original ones, such as a sample; every table then says so",
    )
    parser.add_argument("--grey", action="store_true", help="one channel instead of three")
    parser.add_argument(
        "--size",
        type=count,
        metavar="PIXELS",
        help="side of the images: any for dogs-vs-cats (default: 224), for the others a divisor of "
        "theirs (each square becomes its mean)",
    )
    options = parser.parse_args(words)
    if options.source is not None and not options.source.exists():
        raise UserError(f"--from: there is no {options.source}")
    return options


def addresses(words: Sequence[str]) -> Namespace:
    """The options of `check sources`."""
    parser = Parser("data-prep/check_sources.sh", ADDRESSES)
    parser.add_argument("corpus", nargs="*", metavar="CORPUS", help=f"{', '.join(CORPORA)} (default: all)")
    return parser.parse_args(words)
