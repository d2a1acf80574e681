"""The trie of label continuations: what the model could answer, as one small tree of tokens.

A *continuation* is the tokens of one label as they would follow the prompt, with the end-of-turn token at its end.
Labels share beginnings, so their continuations form a trie. Its inner nodes are the tokens that must be fed to the
model; its edges are the (node, next token) pairs whose score the model must give. Node 0 is the root: the last token
of the prompt. Every engine fills the same row of edge scores, so everything after the engine is one matrix product.

A label's score is one of two. *Vocabulary*: the joint log-probability of its whole continuation. *Siblings*: the
log-probability with which decoding constrained to the trie gives the label (De Cao et al. 2021, "Autoregressive Entity
Retrieval"): at each node only the tokens that some label goes on with compete. Where only one does, nothing is
decided, so such edges need no score, and tokens behind the last decision need not be fed: with many labels that is most
of them.

Knows nothing of tensors, models or tokenizers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError, quoted

Normaliser = Literal["vocabulary", "siblings"]


@dataclass(frozen=True)
class ContinuationTree:
    """Inner nodes and edges of the trie of all label continuations.

    ``T`` fed nodes are numbered 1..T in depth-first order; node 0 is the end of the prompt. ``E`` edges.

    Attributes:
        token_ids: the token of each fed node, T long.
        parents: the node above each fed node, T long.
        edges: (node, token) of each edge, E long; those of one node stand together, nodes in order.
        label_edges: for each label the indices of its edges.
        normaliser: whether an engine gives an edge as a log-probability over the vocabulary, or as a bare logit that is
            compared with those of its siblings, the edges from the same node.
        continuations: per label its tokens, whether or not they have to be fed.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    label_edges: tuple[tuple[int, ...], ...]
    normaliser: Normaliser
    continuations: tuple[tuple[int, ...], ...]

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
    def siblings(self) -> NDArray[np.int64]:
        """Index of the first edge of each node that has edges."""
        nodes = np.array([node for node, _ in self.edges])
        return np.flatnonzero(np.diff(nodes, prepend=-1))

    @cached_property
    def label_matrix(self) -> NDArray[np.float64]:
        """(E, labels): 1 where an edge belongs to a label, so that edge scores times this are label scores."""
        matrix = np.zeros((len(self.edges), len(self.label_edges)))
        for label, edges in enumerate(self.label_edges):
            matrix[list(edges), label] = 1.0
        return matrix


def build_tree(continuations: Sequence[Sequence[int]], normaliser: Normaliser = "vocabulary") -> ContinuationTree:
    """Build the trie of whole continuations.

    Args:
        continuations: per label its tokens, end-of-turn included, in label order.
        normaliser: see ``ContinuationTree``; with ``siblings`` only what decides between labels is fed and scored.

    Raises:
        UsageError: two labels have the same continuation.
    """
    # 1. the trie: what may follow each beginning of a continuation
    follow: dict[tuple[int, ...], dict[int, None]] = {}
    whole = [tuple(continuation) for continuation in continuations]
    if len({*whole}) < len(whole):
        raise UsageError("two labels are the same tokens to this model", "rename one of them")
    for continuation in whole:
        for depth, token in enumerate(continuation):
            follow.setdefault(continuation[:depth], {})[token] = None

    # 2. beginnings whose next token is scored, and those that must be fed to get there, depth first
    scored = {start for start, tokens in follow.items() if normaliser == "vocabulary" or len(tokens) > 1}
    needed = {start[:depth] for start in scored for depth in range(len(start) + 1)}
    nodes = [*dict.fromkeys(c[:depth] for c in whole for depth in range(len(c)) if c[:depth] in needed)]
    number = {start: node for node, start in enumerate(nodes)}

    # 3. edges, node by node, and those of each label
    pairs = [(start, token) for start in nodes if start in scored for token in follow[start]]
    edges = {pair: edge for edge, pair in enumerate(pairs)}
    return ContinuationTree(
        token_ids=tuple(start[-1] for start in nodes[1:]),
        parents=tuple(number[start[:-1]] for start in nodes[1:]),
        edges=tuple((number[start], token) for start, token in pairs),
        label_edges=tuple(
            tuple(edges[c[:depth], token] for depth, token in enumerate(c) if c[:depth] in scored) for c in whole
        ),
        normaliser=normaliser,
        continuations=tuple(whole),
    )


def part_of_tree(tree: ContinuationTree, n_labels: int) -> ContinuationTree:
    """The tree of about so many of the labels, spread over their order; a tree without fed nodes is cheap and stays."""
    if tree.n_nodes == 0 or len(tree.label_edges) <= n_labels:
        return tree
    return build_tree(tree.continuations[:: len(tree.continuations) // n_labels], tree.normaliser)


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
            names = " and ".join(quoted(first[token], label))
            raise UsageError(
                f"labels {names} begin with the same token, which first-token scoring compares",
                "use --scoring constrained, or rename one of them",
            )
        first[token] = label
    edges = tuple((0, token) for token in first)
    own = tuple((edge,) for edge in range(len(edges)))
    return ContinuationTree((), (), edges, own, "siblings", tuple((token,) for token in first))
