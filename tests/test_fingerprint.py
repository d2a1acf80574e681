from typing import Any

import pytest

from pipeline.build import build_stage
from pipeline.settings import Settings
from pipeline.task_file import builtin_task
from tests.tiny import tiny_model, tiny_tokenizer


def fingerprint_of(family: str, **changes: Any) -> str:
    model = tiny_model(family, tokenizer=tiny_tokenizer("chatml"), **changes)
    return build_stage(builtin_task(), model, Settings()).fingerprint


def test_the_same_model_and_task_have_the_same_fingerprint():
    assert fingerprint_of("llama") == fingerprint_of("llama")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
        ("granite", {"logits_scaling": 7.0}),
        ("mistral", {"sliding_window": 5}),
        ("gemma2", {"final_logit_softcapping": 1.0}),
    ],
)
def test_a_configuration_that_changes_scores_changes_the_fingerprint_though_the_weights_are_the_same(family, changes):
    """With --cache, a model whose config.json was corrected got the labels of the wrong one."""
    assert fingerprint_of(family, **changes) != fingerprint_of(family)
