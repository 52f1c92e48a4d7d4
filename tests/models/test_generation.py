"""What fairseq's generator writes: texts in which no n-gram repeats."""

from argparse import Namespace
from collections import Counter

import pytest
import torch
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.language_modeling import LanguageModelingTask

from tests.helpers.lm import build_lm, dictionary
from user_dir.fairseq_patches.generation import without_repeats

WORDS = 40


def written(prompts, size, sampling=False, **options):
    """All texts of the beams that continue the prompts with `--no-repeat-ngram-size`."""
    words = dictionary(WORDS)
    torch.manual_seed(1)
    model = build_lm("transnormer_t1", words=WORDS)
    search = {"search_strategy": Sampling(words, sampling_topk=5)} if sampling else {}
    limits = {"max_len_b": 30, "min_len": 25, "beam_size": 3, **options}
    generator = SequenceGenerator([model], words, no_repeat_ngram_size=size, **limits, **search)
    source = torch.tensor([[words.eos(), *prompt] for prompt in prompts])
    sample = {
        "net_input": {"src_tokens": source, "src_lengths": torch.tensor([source.shape[1]] * len(source))}
    }
    texts = LanguageModelingTask(Namespace(), words).inference_step(generator, [model], sample)
    return [[text["tokens"].tolist() for text in beams] for beams in texts]


def repeated(text, size):
    """The n-grams that a text holds more than once."""
    counts = Counter(tuple(text[at : at + size]) for at in range(len(text) - size + 1))
    return [ngram for ngram, count in counts.items() if count > 1]


@pytest.mark.parametrize("sampling", [False, True], ids=["beam", "sampling"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_repeats(size, sampling):
    prompts = [[4, 5, 6], [7, 8, 9]]
    texts = [text for beams in written(prompts, size, sampling) for text in beams]
    assert len(texts) == 6 and all(len(text) > 25 for text in texts)
    assert not any(repeated(text, size) for text in texts)


def test_without_the_option_they_repeat():
    for sampling in (False, True):
        assert repeated(written([[4, 5, 6]], 0, sampling)[0][0], 3)


@pytest.mark.parametrize("size", [1, 2])
def test_a_prompt_may_repeat_itself(size):
    prompt = [4, 5, 4, 5, 4, 5]
    for text in written([prompt], size)[0]:
        assert text[: len(prompt)] == prompt and not repeated(text[len(prompt) :], size)


def test_a_text_that_has_used_every_word_still_ends():
    for text in written([[4, 5]], 1, max_len_b=60, min_len=50)[0]:
        assert 50 < len(text) <= 61 and not repeated(text[:30], 1)


def test_only_words_that_would_repeat_are_forbidden():
    """Against a list of all n-grams of each row."""
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 3, 4):
        for length in range(9):
            text = torch.randint(4, (5, length), generator=generator)
            scores = without_repeats(text, torch.zeros(5, 9), size)
            for row, said in zip(text.tolist(), scores.isneginf(), strict=True):
                before = {tuple(row[at : at + size]) for at in range(length - size + 1)}
                end = row[length - size + 1 :] if length >= size else []
                assert said.tolist() == [(*end, word) in before for word in range(9)]
