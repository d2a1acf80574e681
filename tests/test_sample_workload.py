"""Texts to measure on: what a measurement relies on."""

from collections import Counter

import numpy as np
import pytest

from sample_data.bank import TRUTHS
from sample_data.workload import mixed_texts, one_line_texts


@pytest.mark.parametrize("write", [mixed_texts, one_line_texts])
def test_no_text_comes_twice_and_truths_are_equally_often(write):
    texts = write(300)
    assert len({text for text, _ in texts}) == 300
    assert Counter(truth for _, truth in texts) == dict.fromkeys(TRUTHS, 100)
    assert {truth for _, truth in texts[3:6]} == {*TRUTHS}


@pytest.mark.parametrize("write", [mixed_texts, one_line_texts])
def test_they_are_the_same_every_time_and_more_begin_with_those_of_few(write):
    assert write(90) == write(90)
    assert write(90)[:20] == write(20)
    assert write(20) != write(20, seed=1)
    assert write(0) == []


def test_mixed_texts_are_long_tailed():
    n_words = [len(text.split()) for text, _ in mixed_texts(600)]
    median, p95 = np.percentile(n_words, [50, 95])
    assert 55 <= median <= 75
    assert 220 <= p95 <= 300
    assert 300 <= max(n_words) <= 420


def test_mixed_texts_have_no_filler_in_common():
    """Three sentences and filler once flattered every engine that caches beginnings."""
    texts = [text for text, _ in mixed_texts(600)]
    assert Counter(text[:40] for text in texts).most_common(1)[0][1] <= 6
    lines = Counter(
        line for text in texts for line in {*text.replace(". ", ".\n").split("\n")} if len(line.split()) > 2
    )
    assert lines.most_common(1)[0][1] <= 0.03 * 600


def test_one_line_texts_are_short_or_as_wanted():
    texts = [text for text, _ in one_line_texts(60)]
    assert all(7 <= len(text.split()) <= 13 for text in texts)
    assert not any("\n" in text for text in texts)
    assert all(len(text) < 40 for text, _ in one_line_texts(30, fits=lambda text: len(text) < 40))


def test_what_is_never_written_is_told():
    with pytest.raises(ValueError, match="none is wanted"):
        one_line_texts(1, fits=lambda text: False)
