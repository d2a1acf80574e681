"""The engines that take part; each is one small module with ``build`` and, where the model must be converted,
``convert``."""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.peers.work import Prompt

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Labels prompts.

    Attributes:
        setting: how it is configured, for the table.
    """

    setting: str

    def label(self, prompts: Sequence[Prompt]) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
        """(R,) labels of R prompts, and (R, L) logits of the labels' first tokens if the engine gives them."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine and what it needs.

    Attributes:
        name: for ``--engines`` and the table.
        module: of this package.
        precision: of weights and of arithmetic, for the table and for the module.
        needs: packages by name and version; those with the same name with underscores are what is imported.
    """

    name: str
    module: str
    precision: str
    needs: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Requirements for ``pip install`` that are not met."""
        imported = ((need, need.partition("==")[0].replace("-", "_")) for need in self.needs)
        return [need for need, name in imported if importlib.util.find_spec(name) is None]

    def load(self) -> ModuleType:
        return importlib.import_module(f"tests.peers.engines.{self.module}")


ORT = ("onnxruntime==1.31.1", "onnx==1.23.2", "onnxscript==0.7.2")
OPENVINO = ("openvino==2026.4.1",)
GENAI = (*OPENVINO, "openvino-tokenizers==2026.4.1.0", "openvino-genai==2026.4.1.0")
CTRANSLATE2 = ("ctranslate2==4.8.5",)
PEERS = (
    Peer("ours", "ours", "float32", ()),
    Peer("transformers", "one_at_a_time", "float32", ()),
    Peer("onnxruntime", "onnx_graph", "float32", ORT),
    Peer("openvino", "openvino_graph", "float32", OPENVINO),
    Peer("openvino-genai", "openvino_genai_batching", "float32", GENAI),
    Peer("ctranslate2", "ctranslate2_batches", "float32", CTRANSLATE2),
    Peer("ours-int8", "ours", "int8", ()),
    Peer("onnxruntime-int8", "onnx_graph", "int8", ORT),
    Peer("openvino-genai-int8", "openvino_genai_batching", "int8", (*GENAI, "nncf==3.4.0")),
    Peer("ctranslate2-int8", "ctranslate2_batches", "int8", CTRANSLATE2),
)
OURS, REFERENCE = "ours", "transformers"


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def longest_first(prompts: Sequence[Prompt]) -> list[int]:
    """Indices of the prompts."""
    return sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))


def on_all_cores(do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Several calls at a time, as many as there are cores."""
    with ThreadPoolExecutor(n_cores()) as pool:
        return list(pool.map(do, items))
