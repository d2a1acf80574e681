"""The labelled texts of the label-quality measurements, each subset with a task and held-out rows.

Two public data sets: Banking77 (Casanueva et al. 2020), whose own split is kept, and the customer-service intents of
DSTC11 (Galley et al. 2023), split by a seed. Their files are the user's; only the tasks come with the package.
"""

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import polars as pl

from pipeline.errors import InputError, InputMissingError
from pipeline.task import Task
from pipeline.task_file import load_task

BANKING = "banking77.parquet"
DSTC11 = "dstc11_customer_service.parquet"
SUBSETS = ("banking5", "banking77", "dstc11_finance", "dstc11_insurance", "dstc11_banking")
SEED = 0
MAX_TRAIN_ROWS = 24  # of a label, where there is no split to keep


@dataclass(frozen=True, slots=True)
class Subset:
    """Rows with some of the labels, and the task that asks for them.

    Attributes:
        name: for the table.
        task: with the defaults of a task file.
        train: columns text and label, in an order that is random and the same every time.
        test: likewise; no text of it is in ``train``.
    """

    name: str
    task: Task
    train: pl.DataFrame
    test: pl.DataFrame

    def shots(self, n_rows: int) -> pl.DataFrame:
        """The first rows to train on of each label, ``n_rows`` or all that it has."""
        return self.train.filter(pl.int_range(pl.len()).over("label") < n_rows)


def load_subset(folder: Path, name: str, n_rows: int) -> Subset:
    """Read a subset.

    Args:
        folder: holds the files of both data sets.
        name: one of ``SUBSETS``.
        n_rows: most rows to test on.

    Raises:
        InputMissingError: a file is not there.
        InputError: it does not hold what it should.
    """
    with as_file(files("pipeline").joinpath(f"bench/quality_tasks/{name}.toml")) as path:
        task = load_task(path)
    if name.startswith("banking"):
        rows = _read(folder / BANKING, "split").filter(pl.col("label").is_in(task.label_names))
        train, test = (rows.filter(pl.col("split") == split) for split in ("train", "test"))
    else:
        rows = _read(folder / DSTC11, "domain").filter(pl.col("label").is_in(task.label_names))
        rows = rows.filter(pl.col("domain") == name.removeprefix("dstc11_"))
        place, n_label = pl.int_range(pl.len()).over("label"), pl.len().over("label")
        is_train = place < pl.min_horizontal(n_label // 2, MAX_TRAIN_ROWS)
        train, test = rows.filter(is_train), rows.filter(~is_train)
    test = test.join(train, on="text", how="anti").sample(fraction=1.0, shuffle=True, seed=SEED).head(n_rows)
    if missing := [label for label in task.label_names if label not in set(train["label"])]:
        raise InputError(f"{str(folder)!r} holds no row to train on for label {missing[0]!r} of {name}", _HINT)
    if test.is_empty():
        raise InputError(f"{str(folder)!r} holds no row to test on for {name}", _HINT)
    return Subset(name, task, train, test)


_HINT = f"the folder must hold {BANKING} (text, label, split) and {DSTC11} (text, label, domain)"


def _read(path: Path, part: str) -> pl.DataFrame:
    """Distinct texts, in random order, the same every time."""
    try:
        rows = pl.read_parquet(path, columns=["text", "label", part])
    except FileNotFoundError:
        raise InputMissingError(f"{str(path)!r} does not exist", _HINT) from None
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{str(path)!r} cannot be read: {reason[:200]}", _HINT) from None
    return rows.unique("text", keep="first", maintain_order=True).sample(fraction=1.0, shuffle=True, seed=SEED)
