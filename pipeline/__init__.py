"""Label a big Parquet table with a small local language model: exact, fast, in original row order.

The command line is ``python -m pipeline.classify``; this is the same stage for Python, see ``pipeline.api``. Names are
imported when they are first used, so that ``import pipeline`` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api import Labeller, label_stream, label_table
    from pipeline.engine.load import load_model
    from pipeline.errors import PipelineError
    from pipeline.label_store import LabelStore
    from pipeline.settings import Settings
    from pipeline.stats import RunStats
    from pipeline.task import Task
    from pipeline.task_file import builtin_task, load_task

    __version__: str

__all__ = [
    "LabelStore",
    "Labeller",
    "PipelineError",
    "RunStats",
    "Settings",
    "Task",
    "__version__",
    "builtin_task",
    "label_stream",
    "label_table",
    "load_model",
    "load_task",
]

_MODULES = {
    "LabelStore": "label_store",
    "Labeller": "api",
    "PipelineError": "errors",
    "RunStats": "stats",
    "Settings": "settings",
    "Task": "task",
    "builtin_task": "task_file",
    "label_stream": "api",
    "label_table": "api",
    "load_model": "engine.load",
    "load_task": "task_file",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("pipeline.version").installed_version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pipeline.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
