"""How many buckets are scored at once, and what that does to the threads of others."""

import threading

import pytest
import torch

from pipeline.engine.workers import default_threads_kept, n_workers, use_one_thread


@pytest.fixture(autouse=True)
def three_threads() -> object:
    own = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(own)


def in_a_new_thread(*steps: object) -> list[object]:
    """What the steps give, in a thread of their own."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(step() for step in steps))  # type: ignore[operator]
    thread.start()
    thread.join()
    return found


def test_a_cpu_has_a_worker_for_each_thread_that_torch_may_use() -> None:
    assert n_workers(torch.device("cpu")) == 3
    torch.set_num_threads(1)
    assert n_workers(torch.device("cpu")) == 1


@pytest.mark.parametrize("kind", ["cuda", "mps", "meta"])
def test_an_accelerator_takes_one_bucket_at_a_time(kind: str) -> None:
    assert n_workers(torch.device(kind)) == 1


def test_a_thread_that_computes_alone_leaves_the_others_as_they_are() -> None:
    with default_threads_kept():
        assert in_a_new_thread(use_one_thread, torch.get_num_threads) == [None, 1]
        assert torch.get_num_threads() == 3
    assert in_a_new_thread(torch.get_num_threads) == [3]
