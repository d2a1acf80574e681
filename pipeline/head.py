"""A linear head: what decides in place of the labels' tokens, fitted on a few labelled rows.

It is one matrix and one bias on the hidden states of a row, kept as a safetensors file beside the task file. The file
says which labels it knows and what model and prompt it was fitted for; whether these are the ones at hand is for its
user to compare. All arithmetic is float64. Needs numpy and safetensors; knows nothing of how it was fitted.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pipeline.errors import OutputError, StorageError, UsageError
from pipeline.readout import HiddenStates
from pipeline.scoring import class_scores

FORMAT = 2
# One entry: the library writes several in any order, and the same head should be the same bytes.
METADATA_KEY = "parquet_classify.head"
FIT_AGAIN = "fit the head again: python -m pipeline.tune"
MAX_HEAD_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class LinearHead:
    """Scores of labels as a linear function of a row's features.

    Attributes:
        weights: (labels, features) float32; features are 2 * H, see ``HiddenStates``.
        bias: (labels,) float32.
        labels: name of each row of ``weights``.
        multi: whether a row may have any number of the labels: a logit is then the log-odds of yes.
        fitted_for: hex digest of the model and the prompt whose hidden states it was fitted on.
        notes: (name, value) of how it was fitted, for people.
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    labels: tuple[str, ...]
    multi: bool
    fitted_for: str
    notes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        assert self.weights.dtype == self.bias.dtype == np.float32
        assert (
            self.weights.ndim == 2 and len(self.weights) == len(self.labels) and self.bias.shape == (len(self.labels),)
        )

    @property
    def n_features(self) -> int:
        """Features of a row that it expects."""
        return int(self.weights.shape[1])

    @property
    def digest(self) -> str:
        """Hex digest of all that it is, notes included."""
        parts = (json.dumps(self._facts(), sort_keys=True).encode(), self.weights.tobytes(), self.bias.tobytes())
        return hashlib.sha256(b"\x00".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, labels) logits of (n, features) features, the labels in the head's own order."""
        logits: NDArray[np.float64] = features.astype(np.float64) @ self.weights.T.astype(np.float64) + self.bias
        return logits

    def to_bytes(self) -> bytes:
        """Its safetensors file; the same bytes for the same head."""
        metadata = json.dumps(self._facts() | {"digest": self.digest}, sort_keys=True)
        return bytes(save({"bias": self.bias, "weights": self.weights}, metadata={METADATA_KEY: metadata}))

    def save(self, path: Path) -> None:
        """Write it as a safetensors file, in one step, over an older one.

        Raises:
            OutputError: the file cannot be created.
            StorageError: the device failed or is full.
        """
        target = Path(os.path.realpath(path))
        work = target.with_name(f".{target.name}.partial")
        try:
            file = work.open("wb")
        except OSError as error:
            raise OutputError(f"head {str(path)!r} cannot be created: {error.strerror}", "name another file") from error
        try:
            with file:
                file.write(self.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            os.replace(work, target)
        except OSError as error:
            with suppress(OSError):
                work.unlink()
            raise StorageError(f"writing head {str(path)!r} failed: {error.strerror}", "make room there") from error

    def _facts(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "labels": self.labels,
            "multi": self.multi,
            "fitted_for": self.fitted_for,
            "notes": dict(self.notes),
        }


@dataclass(frozen=True, slots=True)
class HeadScorer:
    """Decides by a head; a ``Scorer``.

    Attributes:
        head: with exactly the labels of the task.
        order: (labels,) which of the head's labels each label of the task is.
    """

    head: LinearHead
    order: tuple[int, ...]
    name = "head"
    readout = HiddenStates()

    def identity(self) -> Any:
        """The head, and which of its labels are the task's."""
        return ["head", self.head.digest, self.order]

    def scores(self, raw: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, labels) scores from (n, 2 * H) hidden states."""
        finite = np.all(np.isfinite(raw), axis=1, keepdims=True)
        logits = self.head.logits(np.where(finite, raw, np.float32(0.0)))[:, list(self.order)]
        return class_scores(np.where(finite, logits, np.nan), multi=self.head.multi)


def head_scorer(head: LinearHead, labels: Sequence[str], *, multi: bool, path: Path) -> HeadScorer:
    """The scorer of a task's labels.

    Args:
        head: of the file.
        labels: of the task, in any order.
        multi: whether the task allows any number of labels.
        path: of the head, for messages.

    Raises:
        UsageError: the head was fitted for other labels, or for the other mode.
    """
    where = f"head: {str(path)!r}"
    if unknown := [label for label in labels if label not in head.labels]:
        raise UsageError(f"{where} was not fitted for label {unknown[0]!r}", FIT_AGAIN)
    if left := [label for label in head.labels if label not in labels]:
        raise UsageError(f"{where} was fitted for label {left[0]!r} too, which the task does not have", FIT_AGAIN)
    if multi != head.multi:
        fitted, asked = ("multi", "single") if head.multi else ("single", "multi")
        raise UsageError(f"{where} was fitted for mode {fitted!r}, and the task has mode {asked!r}", FIT_AGAIN)
    return HeadScorer(head, tuple(head.labels.index(label) for label in labels))


def load_head(path: Path) -> LinearHead:
    """Read a head.

    Raises:
        UsageError: the file is missing, cannot be read, is no head, or one of another format.
    """
    where = f"head: {str(path)!r}"
    if path.is_dir():
        raise UsageError(f"{where} is a folder", "name the file of the head, T2.head.safetensors for instance")
    try:
        n_bytes = path.stat().st_size if path.is_file() else -1
        if n_bytes > MAX_HEAD_FILE_BYTES:
            raise UsageError(f"{where} has {n_bytes} bytes, too many for a head", FIT_AGAIN)
        with safe_open(path, framework="numpy") as file:
            metadata = (file.metadata() or {}).get(METADATA_KEY)
            names = sorted(file.keys())
            tensors = {name: file.get_tensor(name) for name in names} if metadata else {}
    except FileNotFoundError:
        raise UsageError(f"{where} does not exist", "the path is relative to the task file") from None
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{where} is not a whole safetensors file: {reason}", FIT_AGAIN) from None
    if metadata is None:
        raise UsageError(f"{where} is a safetensors file, but no head of this program", FIT_AGAIN)
    return _head_of(metadata, tensors, where)


def _head_of(metadata: str, tensors: Mapping[str, NDArray[Any]], where: str) -> LinearHead:
    damaged = UsageError(f"{where} is damaged", FIT_AGAIN)
    try:
        fields = json.loads(metadata)
        version = fields["format"]
        if version != FORMAT:
            raise UsageError(f"{where} has format {version!r}, and this program reads {FORMAT}", FIT_AGAIN)
        labels, notes = tuple(map(str, fields["labels"])), tuple(sorted(map(_note, fields["notes"].items())))
        multi, fitted_for = bool(fields["multi"]), str(fields["fitted_for"])
        weights, bias, digest = tensors["weights"], tensors["bias"], fields["digest"]
    except (KeyError, TypeError, AttributeError, ValueError):
        raise damaged from None
    right_types = weights.dtype == bias.dtype == np.float32
    right_shapes = weights.ndim == 2 and bias.shape == (len(labels),) and len(weights) == len(labels)
    if not (right_types and right_shapes and np.isfinite(weights).all() and np.isfinite(bias).all()):
        raise damaged
    head = LinearHead(weights, bias, labels, multi, fitted_for, notes)
    if head.digest != digest:  # a few bits in a weight would change labels unseen
        raise damaged
    return head


def _note(item: tuple[Any, Any]) -> tuple[str, str]:
    return str(item[0]), str(item[1])
