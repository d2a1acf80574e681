"""The layers of a model as plain matrices: the same weights, held once, whatever lay where before."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from pipeline.engine.decoder import Linear, _joined, _share, build_decoder, is_llama_shaped
from tests.engines import LLAMA_SHAPED
from tests.tiny import FAMILIES, tiny_model


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("family", FAMILIES)
def test_llama_shaped_is_what_is_computed_here(family: str) -> None:
    assert is_llama_shaped(tiny_model(family)) == (family in LLAMA_SHAPED)


@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_a_models_parameters_become_views_of_the_joined_matrices(family: str) -> None:
    model = tiny_model(family)
    expected = {name: tensor.clone() for name, tensor in model.lm.state_dict().items()}
    digest = model.digest
    decoder = build_decoder(model)
    for layer, own in zip(decoder.layers, model.lm.base_model.layers, strict=True):
        attention, start = own.self_attn, layer.qkv.weight.data_ptr()
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            assert linear.weight.data_ptr() == start
            assert storage(linear.weight) == storage(layer.qkv.weight)
            start += linear.weight.nbytes
            if layer.qkv.bias is not None:
                assert storage(linear.bias) == storage(layer.qkv.bias)
        assert (layer.qkv.bias is None) == (attention.q_proj.bias is None)
    after = model.lm.state_dict()
    assert [*after] == [*expected]
    assert all(torch.equal(after[name], tensor) for name, tensor in expected.items())
    assert replace(model).digest == digest


@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_a_second_decoder_shares_the_matrices_of_the_first(family: str) -> None:
    model = tiny_model(family)
    first, second = build_decoder(model), build_decoder(model)
    for one, other in zip(first.layers, second.layers, strict=True):
        assert one.qkv.weight.data_ptr() == other.qkv.weight.data_ptr()
        assert one.qkv.weight.shape == other.qkv.weight.shape
        assert one.gate.weight.data_ptr() == other.gate.weight.data_ptr()


def test_a_model_whose_matrices_are_joined_can_be_saved_and_trained(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    build_decoder(model)
    model.lm.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert replace(model, lm=again).digest == model.digest
    token_ids = torch.tensor([[5, 6, 7]])
    model.lm(token_ids, labels=token_ids).loss.backward()
    assert model.lm.model.layers[0].self_attn.q_proj.weight.grad is not None


# ------------------------------------------------------------------------------------------------ parts of one matrix


def shared(parts: list[Tensor]) -> Tensor:
    """The joined parts, which hold what they held before and are views of the whole."""
    before = [part.detach().clone() for part in parts]
    whole = _share(parts)
    assert torch.equal(whole, torch.cat(before))
    start = whole.data_ptr()
    for part, old in zip(parts, before, strict=True):
        assert torch.equal(part, old)
        assert part.data_ptr() == start
        start += part.nbytes
    return whole


def parameters(*tensors: Tensor) -> list[Tensor]:
    return [nn.Parameter(tensor) for tensor in tensors]


def test_parts_that_stand_behind_each_other_are_not_copied() -> None:
    held = torch.randn(9, 4)
    parts = parameters(held[1:4], held[4:5], held[5:8])
    assert storage(shared(parts)) == storage(held)
    assert storage(shared(parts)) == storage(held), "nor are they the next time"


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_parts_in_another_order_are_copied_once(order: tuple[int, ...]) -> None:
    """As in a file whose weights are sorted by name."""
    held = torch.randn(9, 4)
    by_place = [held[0:3], held[3:6], held[6:9]]
    parts = parameters(*(by_place[place] for place in order))
    first = shared(parts)
    assert storage(first) != storage(held)
    assert storage(shared(parts)) == storage(first)


def test_parts_with_gaps_of_other_storages_or_across_the_grain_are_copied() -> None:
    held = torch.randn(9, 4)
    shared(parameters(held[0:2], held[3:5]))
    shared(parameters(torch.randn(3, 4), torch.randn(2, 4), torch.randn(1, 4)))
    shared(parameters(torch.randn(4, 3).t(), torch.randn(4, 3).t()))
    shared(parameters(torch.randn(5), torch.randn(2)))


def test_one_layer_gives_what_several_give() -> None:
    linears, inputs = [nn.Linear(8, n) for n in (6, 2, 2)], torch.randn(5, 8)
    expected = torch.cat([linear(inputs) for linear in linears], dim=1).detach()
    with torch.inference_mode():
        out = _joined(*linears).into(torch.empty(5, 10), inputs)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_linear_layer_writes_and_adds_as_transformers_does(has_bias: bool) -> None:
    module, inputs, total = nn.Linear(8, 6, bias=has_bias), torch.randn(5, 8), torch.randn(5, 6)
    linear, expected = Linear(module.weight, module.bias), module(inputs).detach()
    with torch.inference_mode():
        torch.testing.assert_close(linear.into(torch.empty(5, 6), inputs), expected)
        torch.testing.assert_close(linear.add_to(total.clone(), inputs), total + expected)
