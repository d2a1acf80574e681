"""What an engine reads of a pass, one of three.

A ``ContinuationTree`` reads the scores of its edges, (R, E). ``HiddenStates`` reads what the model makes of a row, for
a head of our own. ``ClassLogits`` reads the output of a head that came with the model. Knows no tensors.
"""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.continuations import ContinuationTree


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """(R, 2 * H): the final hidden state of a row's last token, then the mean over the row's own tokens.

    Own tokens are those behind the shared prefix. Final means behind the model's last norm, where it has one.
    """

    n_nodes: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class ClassLogits:
    """(R, labels): the logits of a sequence classification model, in the order of its ``id2label``."""

    n_nodes: ClassVar[int] = 0


Readout = ContinuationTree | HiddenStates | ClassLogits
