"""What tests of engines share: buckets of random tokens, who runs what, and how close two engines have to be."""

import numpy as np
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.engine.fused import FusedEngine
from pipeline.engine.model import Model
from pipeline.engine.packed import PackedEngine
from pipeline.engine.padded import PaddedEngine
from pipeline.engine.select import Build
from pipeline.engine.single import SingleEngine
from pipeline.readout import Readout
from tests.tiny import VOCAB_SIZE

PREFIX = tuple(np.random.default_rng(1).integers(3, VOCAB_SIZE, 12).tolist())
N_SHARED = [12, 9, 0]  # all of the prefix, some of it, nothing
N_TOKENS = [31, 18, 18, 9, 3, 1]
LLAMA_SHAPED = ("llama", "mistral", "qwen2", "qwen3")  # families of tests.tiny that run fused
EXACT = 1e-4  # float32; a wrong mask or position is a hundred times more, see the last tests of the oracle
WRONG = 1e-2


def bucket_of(n_tokens: list[int], n_shared: int, seed: int = 0) -> Bucket:
    token_ids = np.random.default_rng(seed).integers(3, VOCAB_SIZE, sum(n_tokens))
    return Bucket(np.arange(len(n_tokens)), token_ids, np.array(n_tokens), n_shared)


def own_tokens(bucket: Bucket) -> list[NDArray[np.int64]]:
    """Each row's own tokens."""
    return np.split(bucket.token_ids, np.cumsum(bucket.n_tokens)[:-1])


def pick(bucket: Bucket, rows: list[int]) -> Bucket:
    """Some rows of a bucket, in the order given."""
    own = own_tokens(bucket)
    return Bucket(bucket.rows[rows], np.concatenate([own[row] for row in rows]), bucket.n_tokens[rows], bucket.n_shared)


def fast_engines(family: str) -> list[Build]:
    """The engines of a family that can be packed, but for the reference."""
    return [*([FusedEngine] if family in LLAMA_SHAPED else []), PackedEngine, PaddedEngine]


def reference(model: Model, readout: Readout, bucket: Bucket) -> NDArray[np.float32]:
    return SingleEngine(model, PREFIX, readout).score(bucket)


def largest(scores: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    assert scores.shape == expected.shape
    assert scores.dtype == expected.dtype == np.float32
    assert np.isfinite(expected).all()
    return float(np.abs(scores - expected).max())


def assert_same(scores: NDArray[np.float32], expected: NDArray[np.float32], what: str) -> None:
    difference = largest(scores, expected)
    assert difference < EXACT, f"{what}: largest difference {difference:.2g}"
