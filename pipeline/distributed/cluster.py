"""Ray as a run needs it: started here or found at an address, quiet, and what it has for workers."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.command.options import Options
from pipeline.distributed.pool import PoolSize
from pipeline.errors import UsageError

LOCAL = "local"
# Of an own Ray: what workers tell is small, and memory is for models.
OBJECT_STORE_BYTES = 128 << 20
DEFAULT_CPUS = 4
CONNECT_SECONDS = 10.0


@contextmanager
def connected(address: str, restore_signals: Callable[[], None]) -> Iterator[None]:
    """Ray, until the block ends.

    Args:
        address: ``local`` to start one on this machine; else as ``ray.init`` takes it: ``auto`` or ``HOST:PORT``.
        restore_signals: puts the run's handlers back, since Ray has its own for SIGTERM.

    Raises:
        UsageError: there is none at that address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    restore_signals()
    logging.getLogger("ray").setLevel(logging.ERROR)
    own: dict[str, Any] = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    try:
        _knock(address)
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False,
            **(own if address == LOCAL else {}),
        )  # fmt: skip
    except (ImportError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(
            f"--ray {address!r}: {type(error).__name__}: {reason}",
            "check that ray status works there, and that there is a token if it wants one, or use --ray local",
        ) from error
    except BaseException:  # a signal: what runs already must end
        ray.shutdown()
        raise
    restore_signals()
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """See whether anybody listens: Ray itself tries for minutes, and cannot be interrupted meanwhile.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def pool_size(options: Options) -> PoolSize:
    """How many workers there will be, and of what size, by the flags and by what the cluster has now.

    Raises:
        UsageError: no machine of the cluster has room for a worker.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    most_cpus, most_gpus = (max((node.get(kind, 0) for node in nodes), default=0) for kind in ("CPU", "GPU"))
    gpus = options.gpus_per_worker
    if gpus is None:
        gpus = 1 if most_gpus and options.device in ("auto", "cuda") else 0
    cpus = options.cpus_per_worker or max(1, min(DEFAULT_CPUS, int(most_cpus)))
    n_fit = sum(
        int(min(node.get("CPU", 0) // cpus, node.get("GPU", 0) // gpus if gpus else float("inf"))) for node in nodes
    )
    if options.workers is not None:  # an autoscaler may bring what is not there yet
        return PoolSize(options.workers.fewest, options.workers.most, cpus, gpus)
    if not n_fit:
        raise UsageError(
            f"no machine of the cluster has {cpus:g} CPUs and {gpus:g} GPUs for a worker; the largest has "
            f"{most_cpus:g} and {most_gpus:g}",
            "ask for less with --cpus-per-worker or --gpus-per-worker; with --workers it is waited for",
        )
    return PoolSize(n_fit, n_fit, cpus, gpus)


def worker_environment(size: PoolSize) -> dict[str, str]:
    """Variables by which the libraries of a worker keep to its cores."""
    n_threads = str(max(1, int(size.cpus)))
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"),
        n_threads,
    )
    # see pipeline.classify
    return {**threads, "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "true"}
