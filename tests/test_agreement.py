"""What counts as agreement of a quantized model with float32, and who may measure it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pipeline
from pipeline import Labeller, Settings
from pipeline.agreement import Agreement, balanced_agreement, measure_agreement
from pipeline.buckets import Bucket
from pipeline.build import build_stage, hidden_states
from pipeline.engine.fused import FusedEngine
from pipeline.errors import GateError, UsageError
from pipeline.head import LinearHead
from pipeline.stage import Stage
from pipeline.task_file import task_from_toml
from tests.tiny import tiny_model, tiny_tokenizer

TOML = 'text = ["text"]\nsystem = ""\n[labels]\nred = ""\ngreen = ""\nblue = ""\n'
TASK = task_from_toml(TOML, "test")
INT8 = Settings(quantize="int8")
TEXTS = [f"Ticket {i}: the invoice of May shows {i * i} and not {7 * i}" for i in range(40)]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(tokenizer=tiny_tokenizer("unk-is-control"))


@pytest.fixture(scope="module")
def stage(model: Any) -> Stage:
    return build_stage(TASK, model, INT8)


class Changed:
    """An engine whose numbers are changed."""

    name, workers = "changed", 1

    def __init__(self, engine: Any, change: Any) -> None:
        self._engine, self._change = engine, change

    def score(self, bucket: Bucket) -> NDArray[np.float32]:
        read: NDArray[np.float32] = self._change(self._engine.score(bucket))
        return read


def compared(stage: Stage, change: Any) -> Agreement:
    """Float32 with a changed float32."""
    assert stage.unquantized is not None
    return measure_agreement(replace(stage, engine=Changed(stage.unquantized, change)), TEXTS)


# ------------------------------------------------------------------------------------------------ the share


@pytest.mark.parametrize(
    ("expected", "given", "share"),
    [
        ("a" * 10 + "b" * 10, "a" * 10 + "b" * 10, 1.0),
        ("a" * 10 + "b" * 10, "b" * 10 + "a" * 10, 0.0),
        ("a" * 30 + "b" * 10, "a" * 40, 0.5),  # giving the most frequent label is not 75 % right
        ("a" * 10, "a" * 9 + "b", 0.9),
        ("a" * 10 + "bbb" + "ccc", "a" * 10 + "bbb" + "aaa", 0.75),  # rare ones together
        ("a" * 10 + "b", "a" * 11, 10 / 11),  # a single text does not count as much as ten
        ("abc", "abb", 2 / 3),
        ("a" * 10 + "b" * 6 + "c", "a" * 10 + "b" * 6 + "a", (1 + 6 / 7) / 2),
    ],
)
def test_every_label_counts_alike(expected: str, given: str, share: float) -> None:
    assert balanced_agreement(expected, given) == pytest.approx(share)


# ------------------------------------------------------------------------------------------------ measuring


def test_float32_agrees_with_itself(stage: Stage) -> None:
    found = compared(stage, lambda raw: raw)
    assert (found.n_texts, found.n_same, found.balanced, found.largest_difference) == (40, 40, 1.0, 0.0)
    assert found.n_decisions > 1


def test_int8_agrees_with_float32(stage: Stage) -> None:
    found = measure_agreement(stage, TEXTS)
    assert found.balanced > 0.8
    assert 0 < found.largest_difference < 5
    assert str(found).startswith(f"int8 agrees with float32 on {int(found.balanced * 1000 + 1e-9) / 10} % of 40 texts")


def test_the_largest_difference_is_of_what_was_read(stage: Stage) -> None:
    """It leaves the labels as they are, as all numbers grow alike."""
    found = compared(stage, lambda raw: raw + np.float32(1.5))
    assert (found.n_same, found.largest_difference) == (40, pytest.approx(1.5, abs=1e-3))


def test_a_score_that_only_one_of_them_gives_is_another_decision(stage: Stage) -> None:
    found = compared(stage, lambda raw: np.where(np.arange(raw.shape[1]) == 0, np.float32(np.nan), raw))
    assert (found.n_same, found.largest_difference) == (0, np.inf)


@pytest.mark.parametrize("calibration", ["none", "contextual", "batch"])
def test_each_is_calibrated_by_itself(calibration: Any, model: Any) -> None:
    """What favours one label in all texts alike is divided out of int8's scores as it would be in the run."""
    stage = build_stage(replace(TASK, calibration=calibration), model, INT8)
    found = compared(stage, lambda raw: raw + np.where(np.arange(raw.shape[1]) == 0, np.float32(50), np.float32(0)))
    assert (found.n_same == 40) == (calibration != "none")


def test_sets_of_labels_are_compared_whole(model: Any) -> None:
    task = task_from_toml('text = ["text"]\nmode = "multi"\n[labels]\nred = ""\nblue = ""\n', "test")
    assert measure_agreement(build_stage(task, model, INT8), TEXTS).balanced > 0.5


def test_a_head_is_compared_by_its_log_probabilities(model: Any, tmp_path: Any) -> None:
    width = hidden_states(TASK, model, Settings(), TEXTS[:1]).shape[1]
    fitted_for = build_stage(TASK, model, Settings()).prompt_fingerprint
    weights = np.random.default_rng(0).normal(size=(3, width)).astype(np.float32) / width
    head = LinearHead(weights, np.zeros(3, np.float32), TASK.label_names, False, fitted_for, ())
    head.save(tmp_path / "t.head.safetensors")
    stage = build_stage(replace(TASK, head=tmp_path / "t.head.safetensors"), model, INT8)
    assert measure_agreement(stage, TEXTS).largest_difference < 1


def test_there_must_be_something_to_measure(stage: Stage, model: Any) -> None:
    with pytest.raises(UsageError, match="no texts"):
        measure_agreement(stage, [])
    with pytest.raises(UsageError, match="nothing is quantized"):
        measure_agreement(build_stage(TASK, model, Settings()), TEXTS)


def test_one_label_for_all_is_told(caplog: pytest.LogCaptureFixture) -> None:
    Agreement(64, 64, 1.0, 1, 0.5).tell()
    assert caplog.messages[-1] == "float32 gives all 64 texts one label: their agreement tells little"
    caplog.clear()
    Agreement(64, 64, 1.0, 2, 0.5).tell()
    assert caplog.messages in (
        [],
        ["int8 agrees with float32 on 100.0 % of 64 texts (balanced), largest logit difference 0.50"],
    )


def test_too_little_of_it_is_refused_with_both_numbers() -> None:
    found = Agreement(64, 61, 0.9499, 3, 1.234)
    found.check(0.9499)
    with pytest.raises(GateError) as refused:
        found.check(0.95)
    assert str(refused.value) == (
        "--quantize int8: int8 agrees with float32 on 94.9 % of 64 texts (balanced), largest logit difference 1.23; "
        "--min-agreement asks for 95 %"
    )
    assert "--quantize none" in refused.value.hint and "--min-agreement" in refused.value.hint


# ------------------------------------------------------------------------------------------------ building


def test_a_quantized_stage_scores_in_int8_and_has_the_float_engine_beside_it(stage: Stage, model: Any) -> None:
    plain = build_stage(TASK, model, Settings())
    assert isinstance(stage.engine, FusedEngine) and isinstance(stage.unquantized, FusedEngine)
    assert stage.engine is not stage.unquantized
    assert plain.unquantized is None


def test_scores_in_int8_are_never_taken_for_those_of_float32(stage: Stage, model: Any) -> None:
    plain = build_stage(TASK, model, Settings())
    assert plain.prompt_fingerprint == stage.prompt_fingerprint
    assert plain.score_fingerprint != stage.score_fingerprint
    assert plain.fingerprint != stage.fingerprint


def test_hidden_states_are_quantized_where_that_is_asked_for(model: Any) -> None:
    plain, int8 = (hidden_states(TASK, model, settings, TEXTS[:4]) for settings in (Settings(), INT8))
    assert 0 < np.abs(plain - int8).mean() < 0.1 * plain.std()


@pytest.mark.parametrize(
    ("family", "reason"),
    [("gpt2", "the layers of GPT2Model are not known"), ("bloom", "the layers of BloomModel are not known")],
)
def test_a_model_that_cannot_be_quantized_is_refused(family: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        build_stage(TASK, tiny_model(family, tokenizer=tiny_tokenizer("unk-is-control")), INT8)
    assert str(refused.value) == f"--quantize int8 is not for model 'tiny {family}': {reason}"
    assert refused.value.hint == "leave --quantize as it is: none"


@pytest.mark.parametrize("engine", ["packed", "padded", "single"])
def test_other_engines_cannot(engine: Any) -> None:
    with pytest.raises(UsageError, match=f"--quantize int8 and --engine {engine} exclude each other"):
        Settings(quantize="int8", engine=engine)
    Settings(quantize="none", engine=engine)


def test_from_python_nothing_is_held_back_and_the_agreement_is_there_to_ask_for(model: Any) -> None:
    labeller = Labeller(pipeline.builtin_task(), model, INT8)
    found = labeller.agreement(TEXTS)
    assert found.n_texts == 40
    with pytest.raises(GateError):
        replace(found, balanced=0.5).check(0.95)
