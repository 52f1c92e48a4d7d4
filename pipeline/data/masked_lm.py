"""Prepare a text for pre-training RoBERTa models: check, cut into documents, tokenise, binarise.

Documents are kept together, one empty line between them, as fairseq's masked_lm task wants them for
--sample-break-mode complete or complete_doc. Tokens are RoBERTa's (GPT-2's byte-level pairs and
fairseq's dictionary: 50,265 entries with the mask, which fairseq adds), or sentencepiece's.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from pipeline.console import Parser, count
from pipeline.data import wikitext
from pipeline.data.documents import documents_by_empty_lines, documents_by_titles
from pipeline.data.gpt2_bpe import GPT2Tokenizer, find_files
from pipeline.data.preparation import (
    SPLITS,
    Split,
    Workplace,
    check_settings,
    describe,
    finish,
    prepare_once,
)
from pipeline.data.text_encoding import GPT2Encoder, SentencePieceEncoder
from pipeline.data.tokenization import SentencePieceTokenizer, Tokenizer
from pipeline.errors import UserError

OWN_TEXT = "text"
ENCODERS = {encoder.name: encoder for encoder in (GPT2Encoder, SentencePieceEncoder)}
VOCABULARY = 4000

EPILOG = """
corpora:
  wikitext-103-raw, wikitext-2-raw   WikiText before rare words became <unk>: what RoBERTa models of
                                     the papers are trained on
  wikitext-103, wikitext-2           WikiText as language models take it, with <unk>
  text                               a text of your own, in the folder given with --from; an empty line
                                     ends a document
WikiText is downloaded unless --from or --url is given, and must be the published one. RoBERTa's
vocabulary is downloaded to the folder gpt2_bpe beside --dest unless --gpt2-bpe is given, and checked,
too. After an interruption, run the same command again; it continues.
"""


def main() -> None:
    arguments = parse_arguments()
    dest = Path(os.path.abspath(arguments.dest))

    def build(place: Workplace) -> dict:
        # What was named is looked for before the vocabulary is downloaded, the corpus downloaded after it.
        source = wikitext.find_source(arguments, dest) if arguments.source else None
        tokenizer = make_tokenizer(arguments, dest)
        source = source or wikitext.find_source(arguments, dest)
        return prepare(arguments.corpus, source, tokenizer, place, arguments.allow_unverified)

    manifest = prepare_once(dest, build)
    check_same(manifest, arguments, dest)
    wikitext.check_source(manifest, arguments, dest)
    print(f"{dest} is ready: {describe(manifest)}")


def parse_arguments() -> argparse.Namespace:
    """The options; contradictions end here."""
    parser = Parser("data-prep/roberta.sh", __doc__, epilog=EPILOG)
    parser.add_argument("corpus", choices=[*wikitext.CORPORA, OWN_TEXT])
    wikitext.add_places(
        parser,
        "wiki.{train,valid,test}.raw, wiki.{train,valid,test}.tokens or {train,valid,test}.txt",
    )
    parser.add_argument(
        "--tokenizer",
        choices=ENCODERS,
        default=GPT2Encoder.name,
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
    arguments = parser.parse_args()
    if arguments.corpus == OWN_TEXT and not arguments.source:
        parser.error("a text of your own needs --from, the folder it lies in")
    if arguments.tokenizer == GPT2Encoder.name and arguments.vocab_size:
        parser.error("--vocab-size goes with --tokenizer sentencepiece")
    if arguments.tokenizer != GPT2Encoder.name and arguments.gpt2_bpe:
        parser.error("--gpt2-bpe goes with --tokenizer gpt2")
    arguments.vocab_size = arguments.vocab_size or VOCABULARY
    return arguments


def make_tokenizer(arguments: argparse.Namespace, dest: Path) -> Tokenizer:
    """The tokeniser asked for; GPT-2's files are found or fetched now."""
    if arguments.tokenizer == GPT2Encoder.name:
        return GPT2Tokenizer(find_files(arguments.gpt2_bpe, dest.parent))
    return SentencePieceTokenizer(arguments.vocab_size, wikitext.CHARACTER_COVERAGE)


def check_same(manifest: dict, arguments: argparse.Namespace, dest: Path) -> None:
    """Refuse to pass a folder prepared otherwise for what was asked."""
    wanted = {"corpus": arguments.corpus, "tokenizer": arguments.tokenizer}
    if arguments.tokenizer != GPT2Encoder.name:
        wanted["vocabulary"] = arguments.vocab_size
    check_settings(dest, manifest, wanted)
    if not all("documents" in split for split in manifest["splits"].values()):
        raise UserError(
            f"{dest} was prepared without marking its documents; name another --dest or move it away"
        )
    wikitext.check_verified(manifest, arguments, dest)


def prepare(
    corpus: str, source: Path, tokenizer: Tokenizer, place: Workplace, allow_unverified: bool
) -> dict:
    """Read and check the splits, the small ones first, then tokenise and binarise."""
    splits, complaints = {}, []
    clean = ENCODERS[tokenizer.name].clean
    for name in ("valid", "test", "train"):
        reader = wikitext.SplitReader(source, corpus, name)
        documents = write_documents(reader, clean, place.text(name))
        text = reader.text()
        complaint = "" if corpus == OWN_TEXT else wikitext.compare(corpus, name, text)
        if complaint and not allow_unverified:
            raise UserError(
                f"{source}: {complaint}; get the published file, or accept it with --allow-unverified"
            )
        note = complaint or ("" if corpus == OWN_TEXT else "as published")
        print(f"{name}: {documents:,} documents, {text.words:,} words {note}".rstrip(), flush=True)
        complaints += [complaint] if complaint else []
        splits[name] = Split(text.words, text.sha256, text.bytes, documents)
    splits = {name: splits[name] for name in SPLITS}
    verified = None if corpus == OWN_TEXT else not complaints
    return finish(place, corpus, splits, tokenizer, verified, source)


def write_documents(reader: wikitext.SplitReader, clean: Callable[[str], str], target: Path) -> int:
    """Write a split with one empty line between documents; returns their number."""
    cut = documents_by_empty_lines if reader.corpus == OWN_TEXT else documents_by_titles
    number = 0
    with target.open("w", encoding="utf-8", newline="\n") as output:
        for number, document in enumerate(cut(reader.lines()), 1):
            if number > 1:
                output.write("\n")
            output.writelines(f"{clean(line)}\n" for line in document)
    return number
