"""The corpus without a download."""

from itertools import combinations

import pytest
from fairseq.data import Dictionary

from lab.data import bundled_corpus
from tests.helpers.prepared import manifest, rows


@pytest.fixture(scope="module")
def splits():
    return bundled_corpus.split_documents(bundled_corpus.cut_documents(bundled_corpus.load_topics()))


def test_it_is_large_enough(splits):
    documents = {name: len(items) for name, items in splits.items()}
    words = {name: sum(item.words for item in items) for name, items in splits.items()}
    assert sum(documents.values()) > 120
    assert min(documents.values()) > 10
    assert sum(words.values()) > 40_000
    for name in ("valid", "test"):
        assert 0.08 < words[name] / sum(words.values()) <= 0.1


def test_no_passage_is_in_two_documents(splits):
    documents = [document for items in splits.values() for document in items]
    paragraphs = [text for document in documents for text in document.paragraphs]
    assert len(paragraphs) == len(set(paragraphs))
    keys = [{document.key for document in items} for items in splits.values()]
    assert not any(one & other for one, other in combinations(keys, 2))


def ten_words_in_a_row(documents):
    found = set()
    for document in documents:
        for line in document.lines:
            words = line.lower().split()
            found |= {tuple(words[i : i + 10]) for i in range(len(words) - 9)}
    return found


def test_held_out_text_is_hardly_in_train(splits):
    """Topics quote whole chapters of each other; only phrases that two sections share are left.

    How much that is depends on Python's version, whose reference this is.
    """
    train = ten_words_in_a_row(splits["train"])
    for name in ("valid", "test"):
        held_out = ten_words_in_a_row(splits[name])
        assert len(held_out & train) < 0.05 * len(held_out)


def test_it_reads_like_prose(splits):
    lines = [line for items in splits.values() for item in items for line in item.lines]
    assert not any("::=" in line or ">>>" in line or line.startswith("+-") for line in lines)
    assert not any(line != " ".join(line.split()) or not line for line in lines)


TOPICS = {
    "long": """The "for" statement
*******************

It iterates over the *elements* of **some** sequence or other iterable. [1]

   for_stmt ::= "for" target_list

   for i in range(10):
       print(i)

* a bullet with words

+----+----+
| it | is |
+----+----+


Another section
===============

   Called when the default attribute access fails.
""",
    "short": """The "for" statement
*******************

It iterates over the *elements* of **some** sequence or other iterable.
""",
}


def test_cutting():
    one, two = bundled_corpus.cut_documents(TOPICS)
    assert one.lines == [
        'The "for" statement',
        "It iterates over the elements of some sequence or other iterable.",
        "a bullet with words",
    ]
    assert two.lines == [
        "Another section",
        "Called when the default attribute access fails.",
    ]
    assert one.words == 4 + 12 + 5


def test_prepared(call, splits, tmp_path):
    dest = tmp_path / "some folder" / "bundled"
    call("data-prep/bundled_corpus.sh", "--dest", dest)
    facts = manifest(dest)
    dictionary = Dictionary.load(str(dest / "dict.txt"))
    assert facts["vocabulary"] == len(dictionary) == 2000
    for name, documents in splits.items():
        assert facts["splits"][name]["words"] == sum(item.words for item in documents)
        dataset = rows(dest, name)
        assert facts["splits"][name]["tokens"] == dataset.sizes.sum()
        lines = (line for item in documents for line in item.lines)
        for row, line in zip(dataset, lines, strict=True):
            # Every character of the corpus has a piece: fairseq's simple decoding is enough.
            text = "".join(dictionary[index] for index in row[:-1])
            if "<0x" not in text:
                assert text.replace("\u2581", " ").strip() == line
