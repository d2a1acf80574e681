"""onnxruntime on a graph of our own, with the prefix's keys and values as constants; int8 by dynamic quantization.

One row a call, without padding, as many calls at once as there are cores, each on one thread: less waiting than for
one call on all of them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.peers.engines import longest_first, n_cores, on_all_cores
from tests.peers.work import Prompt, Question


class OnnxGraph:
    def __init__(self, folder: Path, question: Question, precision: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            folder / f"{precision}.onnx", options, providers=["CPUExecutionProvider"]
        )
        self._question = question
        self.setting = f"own graph, prefix constants, {n_cores()} rows at once, 1 thread each"

    def label(self, prompts: Sequence[Prompt]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        n_prefix = len(self._question.prefix_ids)
        logits = np.empty((len(prompts), len(self._question.label_ids)), np.float32)

        def score(row: int) -> None:
            (logits[row],) = self._session.run(None, {"input_ids": np.array([prompts[row][n_prefix:]])})[0]

        on_all_cores(score, longest_first(prompts))
        return self._question.decide(logits), logits


def convert(model_folder: Path, folder: Path, question: Question, precision: str) -> None:
    import torch

    from tests.peers.llama import MAX_POSITIONS, PrefixedLlama, load

    graph = PrefixedLlama(load(model_folder), question.prefix_ids, question.label_ids).eval()
    most = MAX_POSITIONS - len(question.prefix_ids)
    torch.onnx.export(
        graph,
        (torch.arange(32)[None],),
        folder / "float32.onnx",
        input_names=["input_ids"],
        output_names=["logits"],
        dynamic_shapes=({1: torch.export.Dim("n_tokens", min=2, max=most)},),
        opset_version=23,  # the first with an operator for attention
        dynamo=True,
        verbose=False,
    )
    if precision == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(
            folder / "float32.onnx",
            folder / "int8.onnx",
            per_channel=True,
            weight_type=QuantType.QInt8,
            # without VNNI sums of two products overflow 16 bits: onnxruntime's documentation says to leave one bit free
            reduce_range="vnni" not in Path("/proc/cpuinfo").read_text(),
            op_types_to_quantize=["MatMul"],
            use_external_data_format=True,
        )


def build(model_folder: Path, folder: Path, question: Question, precision: str) -> OnnxGraph:
    return OnnxGraph(folder, question, precision)
