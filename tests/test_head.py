"""A head is one file: what is written is what is read, and whatever is wrong with it is told in one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.errors import OutputError, UsageError
from pipeline.head import METADATA_KEY, HeadScorer, LinearHead, head_scorer, load_head
from pipeline.readout import HiddenStates

LABELS = ("billing", "technical", "account")


def head(**changes: Any) -> LinearHead:
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "weights": rng.normal(size=(3, 8)).astype(np.float32),
        "bias": np.array([0.5, 0.0, -0.5], dtype=np.float32),
        "labels": LABELS,
        "multi": False,
        "fitted_for": "abc",
        "notes": (("rows", "30"),),
    }
    return LinearHead(**values | changes)


def features(n_rows: int = 5) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n_rows, 8)).astype(np.float32)


def write(path: Path, metadata: dict[str, Any], **tensors: Any) -> Path:
    arrays = {"weights": np.ones((3, 8), np.float32), "bias": np.ones(3, np.float32)} | tensors
    save_file(arrays, path, metadata={METADATA_KEY: json.dumps(metadata)})
    return path


GOOD = {"format": 2, "labels": LABELS, "multi": False, "fitted_for": "abc", "notes": {}}


# ------------------------------------------------------------------------------------------------------- files


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "mine.head.safetensors"
    head().save(path)
    again = load_head(path)
    assert np.array_equal(again.weights, head().weights) and np.array_equal(again.bias, head().bias)
    assert (again.labels, again.multi, again.fitted_for, again.notes) == (LABELS, False, "abc", (("rows", "30"),))
    assert again.digest == head().digest
    assert [file.name for file in tmp_path.iterdir()] == ["mine.head.safetensors"]


def test_the_same_head_is_the_same_bytes_and_replaces_an_older_one(tmp_path):
    head(fitted_for="older").save(tmp_path / "a")
    for name in "ab":
        head().save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": ("billing", "account", "technical")},
        {"multi": True},
        {"fitted_for": "abd"},
        {"notes": ()},
        {"bias": np.zeros(3, np.float32)},
        {"weights": np.zeros((3, 8), np.float32)},
    ],
)
def test_every_part_of_a_head_is_in_its_digest(changes):
    assert head(**changes).digest != head().digest


def test_a_head_that_cannot_be_written_leaves_the_old_one(tmp_path):
    with pytest.raises(OutputError, match=r"head '.*missing.*' cannot be created"):
        head().save(tmp_path / "missing" / "head")


def test_a_missing_file_is_told_with_the_key(tmp_path):
    with pytest.raises(UsageError, match=r"^head: '.*none' does not exist$") as error:
        load_head(tmp_path / "none")
    assert "relative to the task file" in error.value.hint


def test_a_folder_is_not_a_head(tmp_path):
    with pytest.raises(UsageError, match=r"^head: '.*' is a folder$"):
        load_head(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 40, 200])
def test_a_cut_file_is_told(tmp_path, keep):
    path = tmp_path / "head"
    head().save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"^head: '.*' is not a whole safetensors file: .*[^\n]$"):
        load_head(path)


def test_a_bit_that_flipped_in_a_weight_is_noticed(tmp_path):
    path = tmp_path / "head"
    head().save(path)
    content = bytearray(path.read_bytes())
    for place in (-1, -4, -40):  # the tensors come last
        flipped = content.copy()
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(UsageError, match=r"^head: '.*' is damaged$"):
            load_head(path)


def test_safetensors_that_hold_no_head_are_told(tmp_path):
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "model")
    with pytest.raises(UsageError, match="no head of this program"):
        load_head(tmp_path / "model")


def test_another_format_is_told(tmp_path):
    with pytest.raises(UsageError, match="has format 3, and this program reads 2"):
        load_head(write(tmp_path / "head", GOOD | {"format": 3}))


@pytest.mark.parametrize(
    ("metadata", "tensors"),
    [
        ({"format": 2}, {}),
        (GOOD, {}),
        (GOOD | {"digest": head().digest}, {}),
        ({}, {}),
        (GOOD | {"labels": ["a", "b"]}, {}),
        (GOOD | {"labels": 3}, {}),
        (GOOD | {"notes": []}, {}),
        (GOOD, {"weights": np.ones((3, 8), np.float64)}),
        (GOOD, {"weights": np.ones(24, np.float32)}),
        (GOOD, {"bias": np.ones(2, np.float32)}),
        (GOOD, {"bias": np.array([1, np.nan, 1], np.float32)}),
    ],
)
def test_a_file_with_the_wrong_content_is_damaged(tmp_path, metadata, tensors):
    with pytest.raises(UsageError, match=r"^head: '.*' is damaged$"):
        load_head(write(tmp_path / "head", metadata, **tensors))


def test_metadata_that_are_no_json_are_damaged(tmp_path):
    arrays = {"weights": np.ones((3, 8), np.float32), "bias": np.ones(3, np.float32)}
    save_file(arrays, tmp_path / "head", metadata={METADATA_KEY: "{"})
    with pytest.raises(UsageError, match="is damaged"):
        load_head(tmp_path / "head")


def test_a_head_needs_neither_torch_nor_scikit_learn():
    code = "import sys, pipeline.head; assert not {'torch', 'sklearn', 'scipy'} & sys.modules.keys(), sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


# ------------------------------------------------------------------------------------------------------ scores


def test_scores_are_the_softmax_of_the_linear_function():
    scorer = head_scorer(head(), LABELS, multi=False, path=Path("h"))
    assert isinstance(scorer.readout, HiddenStates)
    logits = features().astype(np.float64) @ head().weights.T.astype(np.float64) + head().bias
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    difference = np.abs(scorer.scores(features()) - expected).max()
    assert difference < 1e-12, difference


def test_labels_in_another_order_get_their_own_scores():
    shuffled = ("account", "billing", "technical")
    plain = head_scorer(head(), LABELS, multi=False, path=Path("h")).scores(features())
    mapped = head_scorer(head(), shuffled, multi=False, path=Path("h"))
    assert np.allclose(mapped.scores(features()), plain[:, [2, 0, 1]], rtol=0, atol=1e-12)
    assert mapped.identity() != HeadScorer(head(), (0, 1, 2)).identity()


def test_with_any_number_of_labels_scores_are_log_odds():
    scorer = head_scorer(head(multi=True), LABELS, multi=True, path=Path("h"))
    assert np.array_equal(scorer.scores(features()), head().logits(features()))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_no_scores_and_spoils_no_other(bad):
    scorer = HeadScorer(head(), (0, 1, 2))
    raw = features()
    raw[2, 3] = bad
    scores = scorer.scores(raw)
    assert np.isnan(scores[2]).all()
    others = [0, 1, 3, 4]
    assert np.array_equal(scores[others], scorer.scores(features())[others])


def test_the_identity_can_be_hashed_as_json():
    assert json.dumps(HeadScorer(head(), (0, 1, 2)).identity()).count(head().digest) == 1


@pytest.mark.parametrize(
    ("labels", "multi", "message"),
    [
        (("billing", "technical", "other"), False, "was not fitted for label 'other'"),
        (("billing", "technical"), False, "was fitted for label 'account' too"),
        (LABELS, True, "was fitted for mode 'single', and the task has mode 'multi'"),
    ],
)
def test_another_task_than_the_head_was_fitted_for_is_refused(labels, multi, message):
    with pytest.raises(UsageError, match=f"^head: 'h' {message}"):
        head_scorer(head(), labels, multi=multi, path=Path("h"))
