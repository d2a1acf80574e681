"""What tune says of its choice."""

import numpy as np
import pytest

from pipeline.tuning.measure import Duel
from pipeline.tuning.table import choice_lines


def duel(head_alone: int, prompt_alone: int, both: int = 5) -> Duel:
    first = np.array([True] * head_alone + [False] * prompt_alone + [True] * both, dtype=bool)
    second = np.array([False] * head_alone + [True] * prompt_alone + [True] * both, dtype=bool)
    return Duel(first, second)


@pytest.mark.parametrize(
    ("tune", "held_out", "end"),
    [
        ((20, 0), (20, 0), "the head is better"),
        ((20, 0), (3, 0), "the head seems better, but too few to confirm it; label more rows"),
        ((20, 0), (2, 2), "they do not confirm that the head is better; label more rows"),
        ((20, 0), (0, 20), "they do not confirm that the head is better; label more rows"),
        ((2, 2), (2, 2), "the head is no better"),
        ((0, 9), (3, 0), "they do not confirm this; label more rows"),
        ((0, 9), (20, 0), "they do not confirm this; label more rows"),
        ((0, 9), (0, 20), "the prompt is better"),
    ],
)
def test_the_choice_is_told_once_and_whether_held_out_texts_confirm_it(tune, held_out, end):
    choice, judged = choice_lines(duel(*tune), duel(*held_out))
    assert choice.startswith("head kept: " if tune[0] > tune[1] else "prompt kept: ")
    assert judged.endswith(f": {end}")


def test_the_choice_says_how_many_rows_of_which_each_has_right():
    assert list(choice_lines(duel(4, 1, both=10), duel(0, 0, both=0))) == [
        "head kept: right on 14 of 15 tune texts it had not seen, the best prompt on 11"
    ]
    (line,) = choice_lines(duel(1, 4, both=10), duel(0, 0, both=0))
    assert line == "prompt kept: right on 14 of 15 tune texts; the head is right on 11 of 15 tune texts it had not seen"
    _, judged = choice_lines(duel(4, 1), duel(3, 1, both=10))
    assert judged.startswith("on 14 held-out texts the head is right on 13, the best prompt on 11 (p = 0.6")
