"""Where each token of a packed bucket stands: in the packed row, in the attention rectangle, and in its own prompt.

Packed order is row after row: a row's own tokens, then the fed nodes of the continuation tree, if there are any.
Attention works on a (rows x slots) rectangle, rows aligned at their end, so the tree's nodes take the last ``T`` slots
of every row and padding stands in front.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.buckets import Bucket
from pipeline.continuations import ContinuationTree
from pipeline.readout import Readout


@dataclass(frozen=True)
class PackedLayout:
    """Index tensors of one packed bucket, all on the model's device.

    ``R`` rows, ``S`` slots per row (longest row + T nodes), ``N`` packed tokens, ``P`` prefix tokens.

    Attributes:
        token_ids: (1, N)
        position_ids: (1, N) position of each token in its own prompt.
        slot_of_token: (N,) flat index r * S + s of each token in the rectangle.
        token_of_slot: (R * S,) the packed token in each slot; padding slots point at token 0.
        n_pad: (R,) padding slots in front of each row.
        tree_sees: (S, S) which slot may see which by order and by the tree, padding and window left aside.
        read_at: (R * (1 + T),) the packed tokens that are read: a row's last own one and its nodes.
        row_of_own: (N,) the row whose own token each packed token is; R for nodes, which are no row's own.
        n_own: (R,) own tokens of each row.
        n_rows: R
        n_slots: S
        n_prefix: P
        max_position: the largest of ``position_ids``.
    """

    token_ids: Tensor
    position_ids: Tensor
    slot_of_token: Tensor
    token_of_slot: Tensor
    n_pad: Tensor
    tree_sees: Tensor
    read_at: Tensor
    row_of_own: Tensor
    n_own: Tensor
    n_rows: int
    n_slots: int
    n_prefix: int
    max_position: int

    @cached_property
    def is_dense(self) -> bool:
        """All rows are equally long: the packed row is the rectangle, and nothing needs to be gathered."""
        return self.n_rows * self.n_slots == self.token_ids.shape[1]

    def mask(self, sliding_window: int | None) -> Tensor:
        """(R, 1, S, P + S) bool: which query slot may see which key slot.

        Args:
            sliding_window: a query sees the keys at most this many positions back, itself included; None for all.
        """
        device = self.n_pad.device
        slot = torch.arange(self.n_slots, device=device)
        is_token = slot >= self.n_pad[:, None]  # (R, S)
        own = self.tree_sees & is_token[:, None, :]  # (R, S, S)
        # padding sees itself, so that no softmax runs over nothing
        own = own | torch.eye(self.n_slots, dtype=torch.bool, device=device)
        prefix = torch.ones(self.n_rows, self.n_slots, self.n_prefix, dtype=torch.bool, device=device)
        mask = torch.cat([prefix, own], dim=-1)
        if sliding_window is not None:
            position = torch.zeros(self.n_rows * self.n_slots, dtype=torch.long, device=device)
            position[self.slot_of_token] = self.position_ids[0]
            queries = position.view(self.n_rows, self.n_slots)
            keys = torch.cat([torch.arange(self.n_prefix, device=device).expand(self.n_rows, -1), queries], dim=-1)
            mask = mask & (queries[:, :, None] - keys[:, None, :] < sliding_window)
        return mask[:, None]

    def mean_of_own(self, states: Tensor) -> Tensor:
        """(N, H) states of packed tokens to (R, H) float32 means over each row's own tokens."""
        sums = torch.zeros(self.n_rows + 1, states.shape[-1], dtype=torch.float32, device=states.device)
        # not a product with a matrix of zeros and ones: one row's NaN must stay its own
        sums.index_add_(0, self.row_of_own, states.float())
        return sums[: self.n_rows] / self.n_own[:, None]


def pack(bucket: Bucket, readout: Readout, device: torch.device) -> PackedLayout:
    """Lay a bucket out for the packed engine."""
    n_tokens, n_nodes = bucket.n_tokens, readout.n_nodes
    n_rows, n_slots = len(n_tokens), int(n_tokens.max()) + n_nodes
    n_packed = n_tokens + n_nodes
    starts = np.cumsum(n_packed) - n_packed  # (R,) first packed token of each row
    total = int(n_packed.sum())

    # 1. which row and which place in it each packed token has
    row = np.repeat(np.arange(n_rows), n_packed)
    place = np.arange(total) - starts[row]
    is_node = place >= n_tokens[row]
    node = np.where(is_node, place - n_tokens[row], 0)

    # 2. token ids and positions; a node stands `depth` behind its row's last own token
    token_ids = np.empty(total, dtype=np.int64)
    token_ids[~is_node] = bucket.token_ids
    positions = bucket.n_shared + place
    if isinstance(readout, ContinuationTree) and n_nodes:
        depths = np.asarray(readout.depths)
        token_ids[is_node] = np.asarray(readout.token_ids)[node[is_node]]
        positions[is_node] = bucket.n_shared + n_tokens[row[is_node]] - 1 + depths[node[is_node]]

    # 3. the attention rectangle, rows aligned at their end
    n_pad = n_slots - n_packed
    slot_of_token = row * n_slots + n_pad[row] + place
    token_of_slot = np.zeros(n_rows * n_slots, dtype=np.int64)
    token_of_slot[slot_of_token] = np.arange(total)

    # 4. causal among a row's own tokens; a node sees them all, itself and the nodes above it
    sees = np.tril(np.ones((n_slots, n_slots), dtype=np.bool_))
    if isinstance(readout, ContinuationTree) and n_nodes:
        sees[-n_nodes:, -n_nodes:] = readout.ancestors

    # 5. each row is read at its last own token, then at each of its nodes
    read_at = (starts + n_tokens - 1)[:, None] + np.arange(1 + n_nodes)

    def tensor(array: NDArray[np.generic]) -> Tensor:
        on_host = torch.from_numpy(array)
        # from pinned memory the copy runs beside what the device is still doing
        return (on_host.pin_memory() if device.type == "cuda" else on_host).to(device, non_blocking=True)

    return PackedLayout(
        token_ids=tensor(token_ids)[None],
        position_ids=tensor(positions)[None],
        slot_of_token=tensor(slot_of_token),
        token_of_slot=tensor(token_of_slot),
        n_pad=tensor(n_pad),
        tree_sees=tensor(sees),
        read_at=tensor(read_at.reshape(-1)),
        row_of_own=tensor(np.where(is_node, n_rows, row)),
        n_own=tensor(n_tokens),
        n_rows=n_rows,
        n_slots=n_slots,
        n_prefix=bucket.n_shared,
        max_position=int(positions.max()),
    )
