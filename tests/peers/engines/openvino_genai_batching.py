"""OpenVINO GenAI: its continuous batching, on a stateful graph of our own; int8 is weights only.

The output matrix has only the labels' rows and the calibration as a bias, so that the one token it is asked for is the
number of the label. That gives no logits, only the label.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.peers.engines import longest_first, n_cores
from tests.peers.work import Prompt, Question

BATCH_TOKENS = 512
CACHE_GB = 1


class GenAiBatching:
    def __init__(self, folder: Path, question: Question) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = BATCH_TOKENS
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "INFERENCE_NUM_THREADS": n_cores(),
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
        self._answer = openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True)
        self.setting = f"continuous batching, {BATCH_TOKENS} tokens, {n_cores()} threads"

    def label(self, prompts: Sequence[Prompt]) -> tuple[NDArray[np.int64], None]:
        import openvino

        order = longest_first(prompts)
        inputs = [openvino.Tensor(np.array([prompts[row]])) for row in order]
        labels = np.empty(len(prompts), np.int64)
        labels[order] = [
            result.m_generation_ids[0][0] for result in self._pipeline.generate(inputs, [self._answer] * len(inputs))
        ]
        return labels, None


def convert(model_folder: Path, folder: Path, question: Question, precision: str) -> None:
    import openvino
    import torch
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    from tests.peers.llama import Llama, load

    lm = load(model_folder)
    graph = Llama(lm, question.label_ids, question.bias).eval()
    config = lm.config
    past = torch.zeros(2, config.num_key_value_heads, 3, config.head_dim)
    example = {
        "input_ids": torch.ones(2, 5, dtype=torch.long),
        "attention_mask": torch.ones(2, 8, dtype=torch.long),
        "position_ids": torch.arange(3, 8).expand(2, 5),
        "past": [(past, past)] * config.num_hidden_layers,
    }
    model = openvino.convert_model(graph, example_input=example)
    make_stateful(model, config)
    if precision == "int8":
        import nncf

        model = nncf.compress_weights(model)
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    # the pipeline wants them, though it is given token ids and asked for none of its own
    parts = convert_tokenizer(AutoTokenizer.from_pretrained(model_folder), with_detokenizer=True)
    for part, name in zip(parts, ("tokenizer", "detokenizer"), strict=True):
        openvino.save_model(part, folder / f"openvino_{name}.xml")
    (folder / "config.json").write_bytes((model_folder / "config.json").read_bytes())


def make_stateful(model: Any, config: Any) -> None:
    """Turn keys and values that come in and go out into state, as optimum-intel does (its exporters.openvino.stateful).

    That package would do it itself, but wants older transformers than this project has.
    """
    import openvino
    from openvino import opset13 as ops
    from openvino._offline_transformations import apply_make_stateful_transformation

    # 1. names and free sizes
    states = [f"{kind}.{layer}" for layer in range(config.num_hidden_layers) for kind in ("key", "value")]
    n_kv, head_size = config.num_key_value_heads, config.head_dim
    for port, name in zip(model.inputs, ("input_ids", "attention_mask", "position_ids", *states), strict=True):
        shape = [-1, n_kv, -1, head_size] if name in states else [-1, -1]
        port.get_tensor().set_names({f"past.{name}" if name in states else name})
        port.get_node().set_friendly_name(port.any_name)
        port.get_node().set_partial_shape(openvino.PartialShape(shape))
    for port, name in zip(model.outputs, ("logits", *states), strict=True):
        port.get_tensor().set_names({f"present.{name}" if name in states else name})

    # 2. each state is read through an index of rows
    rows = ops.parameter([-1], openvino.Type.i32, name="beam_idx")
    rows.output(0).get_tensor().set_names({"beam_idx"})
    model.add_parameters([rows])
    for name in states:
        port = model.input(f"past.{name}")
        readers = port.get_target_inputs()
        picked = ops.gather(port, rows, ops.constant(0))
        for reader in readers:
            reader.replace_source_output(picked.output(0))
    model.validate_nodes_and_infer_types()

    # 3. state instead of inputs and outputs, empty at first
    apply_make_stateful_transformation(model, {f"past.{name}": f"present.{name}" for name in states})
    sizes = ops.shape_of(model.input("input_ids"), output_type="i64")
    n_rows = ops.gather(sizes, ops.constant([0]), ops.constant(0))
    shape = ops.concat([n_rows, ops.constant(np.array([n_kv, 0, head_size]))], axis=0)
    for op in model.get_ops():
        if op.get_type_name() == "ReadValue":
            op.set_arguments([ops.broadcast(ops.constant(0.0, dtype=op.get_output_element_type(0)), shape)])
    model.validate_nodes_and_infer_types()


def build(model_folder: Path, folder: Path, question: Question, precision: str) -> GenAiBatching:
    return GenAiBatching(folder, question)
