"""How many buckets are scored at once, and with how many threads each.

On a CPU the cores are best kept busy with a bucket each: two threads on one matrix product wait for each other at its
end, some two hundred times in a pass, and a busy neighbour makes every wait long. An accelerator takes one bucket at a
time.
"""

import torch


def n_workers(device: torch.device) -> int:
    """Buckets that are scored at once: on a CPU as many as torch may use threads, so OMP_NUM_THREADS rules."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def use_one_thread() -> None:
    """Let the calling thread compute alone; other threads keep theirs."""
    torch.set_num_threads(1)
