import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.continuations import ContinuationTree, build_tree, first_token_tree, part_of_tree
from pipeline.errors import UsageError

EOT = 2
# "bill" begins "billing"; "bill" and "billboard" share a first token; "account" stands alone.
NESTED = [[5, EOT], [5, 6, EOT], [5, 7, 8, EOT], [9, EOT]]

# Few different tokens, so that beginnings are shared and labels begin other labels.
labels_tokens = st.lists(
    st.lists(st.integers(3, 6), min_size=1, max_size=5).map(lambda own: (*own, EOT)),
    min_size=2,
    max_size=8,
    unique=True,
)


def chain(tree: ContinuationTree, node: int) -> tuple[int, ...]:
    """The tokens from the end of the prompt down to a node."""
    return (*chain(tree, tree.parents[node - 1]), tree.token_ids[node - 1]) if node else ()


def test_the_nested_labels_make_the_tree_written_out_here():
    tree = build_tree(NESTED)
    assert tree.token_ids == (5, 6, 7, 8, 9)
    assert tree.parents == (0, 1, 1, 3, 0)
    assert tree.depths == (1, 2, 2, 3, 1)
    assert tree.edges == ((0, 5), (0, 9), (1, EOT), (1, 6), (1, 7), (2, EOT), (3, 8), (4, EOT), (5, EOT))
    assert tree.label_edges == ((0, 2), (0, 3, 5), (0, 4, 6, 7), (1, 8))
    assert tree.paths == ((1, 2), (1, 3, 4), (5,))
    assert tree.normaliser == "vocabulary"


@given(labels_tokens, st.integers(0, 2**32 - 1))
def test_edge_scores_times_the_label_matrix_are_the_sums_over_each_label_alone(continuations, seed):
    tree = build_tree(continuations)
    # any table of next-token scores after any beginning will do
    rng = np.random.default_rng(seed)
    table: dict[tuple[tuple[int, ...], int], float] = {}

    def score(beginning: tuple[int, ...], token: int) -> float:
        return table.setdefault((beginning, token), float(rng.normal()))

    naive = [
        sum(score(tuple(own[:depth]), token) for depth, token in enumerate(own)) for own in map(tuple, continuations)
    ]
    edge_scores = np.array([score(chain(tree, node), token) for node, token in tree.edges])
    by_tree = edge_scores @ tree.label_matrix
    difference = np.abs(by_tree - naive).max()
    assert difference < 1e-12, f"largest difference {difference:.2g} over {continuations}"


@given(labels_tokens)
def test_walking_a_labels_edges_spells_its_continuation(continuations):
    tree = build_tree(continuations)
    for label, continuation in enumerate(continuations):
        edges = [tree.edges[edge] for edge in tree.label_edges[label]]
        assert tuple(token for _, token in edges) == continuation
        assert [chain(tree, node) for node, _ in edges] == [continuation[:depth] for depth in range(len(continuation))]


@given(labels_tokens)
def test_every_beginning_is_fed_once_and_every_next_token_is_scored_once(continuations):
    tree = build_tree(continuations)
    chains = [chain(tree, node) for node in range(1, tree.n_nodes + 1)]
    assert len(set(chains)) == len(chains)
    assert set(chains) == {own[:depth] for own in continuations for depth in range(1, len(own))}
    assert len(set(tree.edges)) == len(tree.edges)


@given(labels_tokens)
def test_parents_come_before_children_and_depths_count_the_way_to_the_root(continuations):
    tree = build_tree(continuations)
    for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True), start=1):
        assert 0 <= parent < node
        assert depth == len(chain(tree, node)) >= 1


@given(labels_tokens)
def test_a_node_sees_itself_and_what_is_above_it_and_nothing_else(continuations):
    tree = build_tree(continuations)
    chains = [chain(tree, node) for node in range(1, tree.n_nodes + 1)]
    expected = [[query[: len(key)] == key for key in chains] for query in chains]
    np.testing.assert_array_equal(tree.ancestors, np.array(expected).reshape(tree.n_nodes, tree.n_nodes))


@given(labels_tokens)
def test_paths_lead_down_from_the_root_and_cover_all_nodes(continuations):
    tree = build_tree(continuations)
    for path in tree.paths:
        assert [tree.parents[node - 1] for node in path] == [0, *path[:-1]]
    assert {node for path in tree.paths for node in path} == set(range(1, tree.n_nodes + 1))
    # and no path lies within another: that would be a pass for nothing
    assert not any(one != other and other[: len(one)] == one for one in tree.paths for other in tree.paths)


def test_labels_with_the_same_tokens_are_refused_with_the_way_out():
    with pytest.raises(UsageError, match="the same tokens") as caught:
        build_tree([[5, EOT], [6, EOT], [5, EOT]])
    assert "rename" in caught.value.hint


def test_a_label_that_begins_another_is_a_label_of_its_own():
    tree = build_tree([[5, EOT], [5, 6, EOT]])
    assert tree.label_edges[0] != tree.label_edges[1][: len(tree.label_edges[0])]


def test_first_tokens_need_no_node_and_one_edge_per_label():
    tree = first_token_tree(["a", "b", "c"], [[5, 6, EOT], [7, EOT], [8, EOT]])
    assert (tree.token_ids, tree.parents, tree.depths, tree.paths) == ((), (), (), ((),))
    assert tree.edges == ((0, 5), (0, 7), (0, 8))
    assert tree.ancestors.shape == (0, 0)
    np.testing.assert_array_equal(tree.label_matrix, np.eye(3))
    assert tree.normaliser == "siblings"


def test_labels_that_share_a_first_token_are_refused_by_both_names_and_the_flag_that_helps():
    with pytest.raises(UsageError) as caught:
        first_token_tree(["refund", "other", "refuse"], [[5, 6, EOT], [7, EOT], [5, 8, EOT]])
    assert "'refund' and 'refuse'" in str(caught.value)
    assert "'other'" not in str(caught.value)
    assert "--scoring constrained" in caught.value.hint


def test_labels_that_share_a_first_token_and_look_alike_are_told_apart():
    with pytest.raises(UsageError, match=r"labels 'caf\\xe9' and 'cafe\\u0301' begin with the same token"):
        first_token_tree(["caf\u00e9", "cafe\u0301"], [[5, 6, EOT], [5, 8, EOT]])


def test_a_part_of_a_tree_holds_labels_spread_over_it():
    continuations = [[5, label, 2] for label in range(10, 110)]
    tree = build_tree(continuations)
    part = part_of_tree(tree, 8)
    assert 8 <= len(part.label_edges) <= 9
    assert part == build_tree(continuations[::12])
    assert part_of_tree(tree, 100) is tree


def test_a_tree_of_first_tokens_is_cheap_and_stays_whole():
    labels = [str(label) for label in range(100)]
    tree = first_token_tree(labels, [[label] for label in range(100)])
    assert part_of_tree(tree, 8) is tree
