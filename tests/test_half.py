"""Half precision on a CPU is told when it is slower than float32."""

import logging

import pytest
import torch

from pipeline.engine.half import slowdown
from pipeline.engine.load import load_model


def test_a_product_is_compared_with_one_in_float32():
    assert slowdown(torch.float32) > 0
    assert slowdown(torch.bfloat16) > 0


@pytest.mark.parametrize(
    ("dtype", "times", "told"), [("bfloat16", 8.25, True), ("bfloat16", 0.5, False), ("auto", 9, False)]
)
def test_a_slower_half_precision_is_told_and_used(dtype, times, told, tiny_model_folder, monkeypatch, caplog):
    monkeypatch.setattr("pipeline.engine.load.slowdown", lambda dtype: times)
    model = load_model(str(tiny_model_folder), device="cpu", dtype=dtype)
    assert model.dtype == (torch.float32 if dtype == "auto" else torch.bfloat16)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == (["--dtype bfloat16: products take 8.2 times as long as in float32 on this CPU"] if told else [])
