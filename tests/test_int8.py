"""Products in int8: close to float32, the same for a token whatever its company, and nothing of the model changed."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.continuations import build_tree
from pipeline.engine.decoder import Norm, build_decoder
from pipeline.engine.fused import FusedEngine
from pipeline.engine.int8 import (
    STATE_LEVELS,
    STATE_ZERO,
    Int8Norm,
    TokenLevels,
    int8_layer,
    int8_linear,
    quantized,
    smoothing_factors,
    why_not_int8,
)
from pipeline.engine.model import Model
from pipeline.readout import HiddenStates
from tests.engines import LLAMA_SHAPED, N_TOKENS, PREFIX, bucket_of
from tests.tiny import tiny_model

TREE = build_tree([[5, 6, 2], [5, 2], [8, 9, 5, 2]], "siblings")

cached_model = cache(tiny_model)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain_norm(size: int) -> Norm:
    return Norm(torch.ones(size), 1e-6)


def engines(model: Model) -> tuple[FusedEngine, FusedEngine]:
    engine = FusedEngine(model, PREFIX, TREE)
    return engine, quantized(engine, [bucket_of(N_TOKENS, 12, seed) for seed in (5, 6)])


def product(weight: Tensor, levels: TokenLevels, bias: Tensor | None = None) -> Tensor:
    return int8_linear(weight, bias).into(torch.empty(len(levels.levels), len(weight)), levels)


# ------------------------------------------------------------------------------------------------ one product


@pytest.mark.parametrize("n_tokens", [1, 2, 33, 200])
def test_a_product_is_close_to_that_of_float32(n_tokens: int) -> None:
    states, weight, bias = random(n_tokens, 64), random(48, 64, seed=1), random(48, seed=2)
    exact = plain_norm(64)(states) @ weight.t() + bias
    difference = (product(weight, Int8Norm(plain_norm(64))(states), bias) - exact).norm() / exact.norm()
    assert difference < 0.02, f"{float(difference):.3f} of its size"


def test_what_levels_can_express_is_exact() -> None:
    """Whole numbers up to the largest level on both sides: also where eight bits would saturate without VNNI."""
    levels = torch.randint(-STATE_LEVELS, STATE_LEVELS + 1, (40, 64), generator=torch.Generator().manual_seed(0))
    levels[0], levels[1] = STATE_LEVELS, -STATE_LEVELS
    weight = torch.randint(-127, 128, (48, 64), generator=torch.Generator().manual_seed(1)).float()
    weight[:, 0], weight[7], weight[8] = 127, 127, -127
    inputs = TokenLevels((levels + STATE_ZERO).to(torch.uint8), torch.ones(40, 1))
    assert torch.equal(product(weight, inputs), levels.float() @ weight.t())


def test_what_a_token_becomes_does_not_depend_on_its_company() -> None:
    """A neighbour a thousand times as large would leave it no levels, were there one scale for all."""
    states, weight = random(50, 64), random(48, 64, seed=1)
    states[10] *= 1000.0
    norm = Int8Norm(Norm(random(64, seed=3), 1e6))  # an epsilon that leaves the states their sizes
    together = product(weight, norm(states))
    for row in (0, 10, 11, 49):
        alone = product(weight, norm(states[row : row + 1]))
        assert torch.equal(together[row : row + 1], alone)
    assert torch.equal(together[7:30], product(weight, norm(states[7:30])))


def test_a_token_of_zeros_becomes_zeros() -> None:
    states = random(3, 64)
    states[1] = 0.0
    read = product(random(48, 64, seed=1), Int8Norm(plain_norm(64))(states))
    assert torch.equal(read[1], torch.zeros(48))
    assert bool(torch.isfinite(read).all())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_token_that_is_not_finite_stays_so_and_alone(value: float) -> None:
    states, weight = random(3, 64), random(48, 64, seed=1)
    clean = product(weight, Int8Norm(plain_norm(64))(states))
    states[1, 5] = value
    read = product(weight, Int8Norm(plain_norm(64))(states))
    assert not bool(torch.isfinite(read[1]).any())
    assert torch.equal(read[[0, 2]], clean[[0, 2]])


def test_a_channel_of_zero_weights_gives_zeros() -> None:
    weight = random(48, 64, seed=1)
    weight[3] = 0.0
    assert torch.equal(product(weight, Int8Norm(plain_norm(64))(random(5, 64)))[:, 3], torch.zeros(5))


# ------------------------------------------------------------------------------------------------ smoothing


def test_smoothing_factors_are_powers_of_two() -> None:
    factors = smoothing_factors(random(64).abs() * 100, random(48, 64, seed=1))
    mantissas, _ = torch.frexp(factors)
    assert bool((mantissas == 0.5).all())
    assert len(factors.unique()) > 3


def test_smoothing_factors_follow_the_states() -> None:
    largest = torch.tensor([1.0, 16.0, 256.0, 0.0])
    factors = smoothing_factors(largest, torch.ones(8, 4))
    assert bool((factors[1:3] > factors[:2]).all())
    assert bool((torch.isfinite(factors) & (factors > 0)).all()), "a channel that was silent"


@pytest.mark.parametrize("largest", [torch.zeros(4), torch.full((4,), 1e-20), torch.full((4,), 1e20)])
def test_states_of_any_size_have_factors(largest: Tensor) -> None:
    for weight in (torch.ones(8, 4), torch.zeros(8, 4)):
        factors = smoothing_factors(largest, weight)
        assert 2**-10 <= factors.unique().item() <= 2**10


@torch.inference_mode()
def test_smoothing_helps_where_few_channels_are_large() -> None:
    (layer, *_) = build_decoder(cached_model("llama")).layers
    norm = Norm(torch.where(torch.arange(32) % 16 == 3, 50.0, 1.0), 1e-6)
    layer, states = replace(layer, mlp_norm=norm), random(200, 32)
    largest = norm(states).abs().amax(dim=0)
    exact = layer.gate.into(torch.empty(200, 48), norm(states))

    def error(scales: Tensor) -> float:
        other = int8_layer(layer, scales)
        read = other.gate.into(torch.empty(200, 48), other.mlp_norm(states))
        return float((read - exact).norm() / exact.norm())

    assert error(largest) < 0.7 * error(torch.ones(32))


# ------------------------------------------------------------------------------------------------ a whole model


@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_a_quantized_model_is_close_to_itself(family: str) -> None:
    engine, int8 = engines(cached_model(family))
    for n_shared in (12, 0):
        bucket = bucket_of(N_TOKENS, n_shared, 1)
        exact, read = engine.score(bucket), int8.score(bucket)
        assert not np.array_equal(exact, read)
        difference = np.abs(read - exact).mean() / exact.std()
        assert difference < 0.1, f"{family}: {difference:.3f} of the spread"


def test_biases_are_kept() -> None:
    engine, int8 = engines(tiny_model("llama", mlp_bias=True))
    bucket = bucket_of(N_TOKENS, 12, 1)
    exact, read = engine.score(bucket), int8.score(bucket)
    assert np.abs(read - exact).mean() < 0.1 * exact.std()


def test_hidden_states_are_read_of_a_quantized_model() -> None:
    engine = FusedEngine(cached_model("llama"), PREFIX, HiddenStates())
    int8, bucket = quantized(engine, [bucket_of(N_TOKENS, 12, 5)]), bucket_of(N_TOKENS, 12, 1)
    exact = engine.score(bucket)
    assert 0 < np.abs(int8.score(bucket) - exact).mean() < 0.1 * exact.std()


@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_a_row_gets_what_it_would_get_alone(family: str) -> None:
    """Up to a step of a level here and there, where rounding in float32 decides which level is the next."""
    _, int8 = engines(cached_model(family))
    bucket = bucket_of(N_TOKENS, 12, 1)
    together = int8.score(bucket)
    alone = np.concatenate([int8.score(bucket.alone(place)) for place in range(len(N_TOKENS))])
    assert np.median(np.abs(together - alone).max(axis=1)) < 1e-4
    assert np.abs(together - alone).max() < 0.1


def test_the_float_engine_and_the_models_weights_stay_as_they_are() -> None:
    model = tiny_model("qwen3")
    engine, bucket = FusedEngine(model, PREFIX, TREE), bucket_of(N_TOKENS, 12, 1)
    digest, before = replace(model).digest, engine.score(bucket)
    int8 = quantized(engine, [bucket_of(N_TOKENS, 12, 5)])
    read = int8.score(bucket)
    assert replace(model).digest == digest
    np.testing.assert_array_equal(engine.score(bucket), before)
    np.testing.assert_array_equal(int8.score(bucket), read)


def test_quantizing_twice_gives_the_same_numbers() -> None:
    bucket = bucket_of(N_TOKENS, 12, 1)
    np.testing.assert_array_equal(
        engines(cached_model("llama"))[1].score(bucket), engines(tiny_model("llama"))[1].score(bucket)
    )


@pytest.mark.parametrize(
    ("family", "dtype", "reason"),
    [
        ("llama", torch.float32, None),
        ("gpt2", torch.float32, "the layers of GPT2Model are not known"),
        ("llama", torch.bfloat16, "it is for float32 on a CPU, not bfloat16 on cpu"),
    ],
)
def test_other_models_cannot_be_quantized(family: str, dtype: torch.dtype, reason: str | None) -> None:
    assert why_not_int8(tiny_model(family, dtype=dtype)) == reason


def test_a_build_of_torch_may_lack_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert why_not_int8(cached_model("llama")) == "this build of torch has no oneDNN"
