"""How many buckets are scored at once, and with how many threads each.

On a CPU the cores are best kept busy with a bucket each: two threads on one matrix product wait for each other at its
end, some two hundred times in a pass, and a busy neighbour makes every wait long. An accelerator takes one bucket at a
time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def n_workers(device: torch.device) -> int:
    """Buckets that are scored at once: on a CPU as many as torch may use threads, so OMP_NUM_THREADS rules."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def use_one_thread() -> None:
    """Let the calling thread compute alone; threads that have computed before keep theirs."""
    torch.set_num_threads(1)


@contextmanager
def default_threads_kept() -> Iterator[None]:
    """Undo what ``use_one_thread`` within the block does to threads that are yet to come, of anybody.

    The last number that any thread has set is torch's default for new ones, so that an engine built in one of them
    would have a single worker.
    """
    n_threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
