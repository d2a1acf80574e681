"""The OpenVINO runtime on a graph of our own, with the prefix's keys and values as constants.

One row a request, without padding, a stream of one thread for every core.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.peers.engines import longest_first, n_cores
from tests.peers.work import Prompt, Question


class OpenVinoGraph:
    def __init__(self, folder: Path, question: Question) -> None:
        import openvino

        compiled = openvino.Core().compile_model(
            folder / "float32.xml",
            "CPU",
            {
                "PERFORMANCE_HINT": "THROUGHPUT",
                "NUM_STREAMS": n_cores(),
                "INFERENCE_NUM_THREADS": n_cores(),
                "INFERENCE_PRECISION_HINT": "f32",
            },
        )
        self._requests = openvino.AsyncInferQueue(compiled, n_cores())
        self._question = question
        self.setting = f"own graph, prefix constants, {n_cores()} streams"

    def label(self, prompts: Sequence[Prompt]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        n_prefix = len(self._question.prefix_ids)
        logits = np.empty((len(prompts), len(self._question.label_ids)), np.float32)

        def keep(request: Any, row: int) -> None:
            logits[row] = request.get_output_tensor(0).data[0]

        self._requests.set_callback(keep)
        for row in longest_first(prompts):
            self._requests.start_async(np.array([prompts[row][n_prefix:]]), row)
        self._requests.wait_all()
        return self._question.decide(logits), logits


def convert(model_folder: Path, folder: Path, question: Question, precision: str) -> None:
    import openvino
    import torch

    from tests.peers.llama import PrefixedLlama, load

    graph = PrefixedLlama(load(model_folder), question.prefix_ids, question.label_ids).eval()
    shape = openvino.PartialShape([1, -1])
    model = openvino.convert_model(
        graph, example_input=torch.arange(32)[None], input=[("input_ids", shape, openvino.Type.i64)]
    )
    openvino.save_model(model, folder / "float32.xml", compress_to_fp16=False)


def build(model_folder: Path, folder: Path, question: Question, precision: str) -> OpenVinoGraph:
    return OpenVinoGraph(folder, question)
