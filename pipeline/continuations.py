"""The trie of label continuations: what the model could answer, as one small tree of tokens.

A *continuation* is the tokens of one label as they would follow the prompt, with the end-of-turn token at its end.
Labels share beginnings, so their continuations form a trie. Its inner nodes are the tokens that must be fed to the
model; its edges are the (node, next token) pairs whose score the model must give. Node 0 is the root: the last token
of the prompt. Every engine fills the same row of edge scores, so everything after the engine is one matrix product.

Knows nothing of tensors, models or tokenizers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError


@dataclass(frozen=True)
class ContinuationTree:
    """Inner nodes and edges of the trie of all label continuations.

    ``T`` fed nodes are numbered 1..T in depth-first order; node 0 is the end of the prompt. ``E`` edges.

    Attributes:
        token_ids: the token of each fed node, T long.
        parents: the node above each fed node, T long.
        edges: (node, token) of each edge, E long.
        label_edges: for each label the indices of its edges.
        normalize: whether an edge's score is a log-probability (True) or a bare logit (False: first tokens only, where
            the normaliser is the same for every label and cancels).
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    label_edges: tuple[tuple[int, ...], ...]
    normalize: bool

    @property
    def n_nodes(self) -> int:
        """Fed nodes per row: the tokens that scoring adds behind each row's own."""
        return len(self.token_ids)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each fed node from the end of the prompt, T long, each at least 1."""
        depth = [0]
        for parent in self.parents:
            depth.append(depth[parent] + 1)
        return tuple(depth[1:])

    @cached_property
    def ancestors(self) -> NDArray[np.bool_]:
        """(T, T): whether fed node q (row) may see fed node k (column): itself and the nodes above it."""
        sees = np.eye(self.n_nodes, dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent > 0:
                sees[node] |= sees[parent - 1]
        return sees

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The longest chains of fed nodes from the root down, which cover the tree; one empty chain if T is 0."""
        inner = set(self.parents)
        chains = []
        for node in range(1, self.n_nodes + 1):
            if node in inner:
                continue
            chain = [node]
            while (parent := self.parents[chain[-1] - 1]) > 0:
                chain.append(parent)
            chains.append(tuple(reversed(chain)))
        return tuple(chains) or ((),)

    @cached_property
    def label_matrix(self) -> NDArray[np.float64]:
        """(E, labels): 1 where an edge belongs to a label, so that edge scores times this are label scores."""
        matrix = np.zeros((len(self.edges), len(self.label_edges)))
        for label, edges in enumerate(self.label_edges):
            matrix[list(edges), label] = 1.0
        return matrix


def build_tree(continuations: Sequence[Sequence[int]]) -> ContinuationTree:
    """Build the trie for joint log-probabilities of whole continuations.

    Args:
        continuations: per label its tokens, end-of-turn included, in label order.

    Raises:
        UsageError: two labels have the same continuation.
    """
    token_ids: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    edges: dict[tuple[int, int], int] = {}
    label_edges: list[tuple[int, ...]] = []
    for continuation in continuations:
        node, own = 0, []
        for depth, token in enumerate(continuation):
            own.append(edges.setdefault((node, token), len(edges)))
            if depth + 1 == len(continuation):
                break
            if (node, token) not in children:
                token_ids.append(token)
                parents.append(node)
                children[node, token] = len(token_ids)
            node = children[node, token]
        if tuple(own) in label_edges:
            raise UsageError("two labels are the same tokens to this model", "rename one of them")
        label_edges.append(tuple(own))
    return ContinuationTree(tuple(token_ids), tuple(parents), tuple(edges), tuple(label_edges), normalize=True)


def part_of_tree(tree: ContinuationTree, n_labels: int) -> ContinuationTree:
    """The tree of about so many of the labels, spread over their order; a tree without fed nodes is cheap and stays."""
    if tree.n_nodes == 0 or len(tree.label_edges) <= n_labels:
        return tree
    continuations = [[tree.edges[edge][1] for edge in edges] for edges in tree.label_edges]
    return build_tree(continuations[:: len(continuations) // n_labels])


def first_token_tree(labels: Sequence[str], continuations: Sequence[Sequence[int]]) -> ContinuationTree:
    """Compare next-token logits of the labels' first tokens only; nothing is fed beyond the prompt.

    Args:
        labels: names, for the message.
        continuations: per label its tokens, at least one.

    Raises:
        UsageError: two labels share their first token.
    """
    first: dict[int, str] = {}
    for label, (token, *_) in zip(labels, continuations, strict=True):
        if token in first:
            raise UsageError(
                f"labels {first[token]!r} and {label!r} begin with the same token, which first-token scoring compares",
                "use --scoring sequence, or rename one of them",
            )
        first[token] = label
    edges = tuple((0, token) for token in first)
    return ContinuationTree((), (), edges, tuple((edge,) for edge in range(len(edges))), normalize=False)
