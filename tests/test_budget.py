"""Tokens of a pass where the user does not say."""

import pytest
import torch

from pipeline.engine.budget import bytes_per_token, default_batch_tokens, tokens_that_fit
from tests.tiny import tiny_model


def test_a_cpu_gets_a_small_fixed_budget():
    assert default_batch_tokens(tiny_model("llama"), 2048) == 512


@pytest.mark.parametrize(
    ("free", "per_token", "tokens"),
    [
        (16 << 30, 40_000, 16384),  # more than enough: no more than is ever given
        (1 << 30, 100_000, 5368),  # half of it is used
        (1 << 20, 100_000, 1024),  # next to nothing: a pass that fails is split
    ],
)
def test_a_gpu_gets_what_fits_in_half_of_its_free_memory(free, per_token, tokens):
    assert tokens_that_fit(free, per_token) == tokens


def test_free_memory_of_the_gpu_decides(monkeypatch):
    model = tiny_model("llama")
    on_gpu = type(model)(model.lm, model.tokenizer, torch.device("cuda"), model.dtype, model.name)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 << 20, 80 << 30))
    assert default_batch_tokens(on_gpu, 2048) == (20 << 20) // bytes_per_token(model, 2048)


def test_larger_layers_longer_prompts_and_wider_numbers_take_more():
    small = tiny_model("llama")
    assert bytes_per_token(small, 4096) - bytes_per_token(small, 2048) == 4096
    half = type(small)(small.lm, small.tokenizer, small.device, torch.bfloat16, small.name)
    states = bytes_per_token(small, 0)
    assert bytes_per_token(half, 0) == states // 2
    config = small.lm.config
    assert states == 4 * (8 * config.hidden_size + 4 * config.intermediate_size)
