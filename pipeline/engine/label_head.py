"""The output matrix as far as the edges of a continuation tree need it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pipeline.continuations import ContinuationTree
from pipeline.engine.model import Model


@dataclass(frozen=True, slots=True)
class LabelHead:
    """What turns final states into logits.

    Attributes:
        matrix: the model's own output matrix, or its rows for the tokens of the edges.
        edges: (node, row of the matrix) of each edge of the tree.
    """

    matrix: nn.Module
    edges: Sequence[tuple[int, int]]


def label_head(model: Model, tree: ContinuationTree) -> LabelHead:
    """The model's output matrix, cut to the tree's tokens where no normaliser over the vocabulary is needed."""
    full = model.lm.get_output_embeddings()
    if tree.normaliser == "vocabulary" or not isinstance(full, nn.Linear):
        return LabelHead(full, tree.edges)
    row_of = {token: row for row, token in enumerate(dict.fromkeys(token for _, token in tree.edges))}
    rows = torch.tensor([*row_of], device=full.weight.device)
    narrow = nn.Linear(full.in_features, len(rows), bias=full.bias is not None, device="meta")
    narrow.weight = nn.Parameter(full.weight[rows], requires_grad=False)
    if full.bias is not None:
        narrow.bias = nn.Parameter(full.bias[rows], requires_grad=False)
    return LabelHead(narrow, [(node, row_of[token]) for node, token in tree.edges])
