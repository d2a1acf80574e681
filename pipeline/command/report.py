"""What a run was and how it went, as numbers: the metrics file, and the footer entry of the output.

Never a word of any text: counts, seconds, names of labels and files.
"""

import json
import os
import resource
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import OutputError, StorageError
from pipeline.stats import RunStats
from pipeline.version import PROGRAM, installed_version

if TYPE_CHECKING:
    from pipeline.agreement import Agreement
    from pipeline.engine.model import Model
    from pipeline.stage import Stage
    from pipeline.verify import Verdict

FOOTER_KEY = b"parquet_classify"


@dataclass(slots=True)
class Report:
    """A run, told while it goes on.

    Attributes:
        input: as the command line names it.
        output: likewise.
        metrics_path: where the metrics will be written, once that is known to be possible.
        stats: counts and seconds by phase. ``load`` is the model's; ``run`` is from the first row read to the output
            in its place, without checks, and holds the other phases.
        facts: see ``run_facts``; empty until the model is loaded.
        files: how many were ``done``, ``skipped``, ``failed``; None when INPUT is one file.
        failures: of files: ``input``, ``exit_code``, ``error``.
        verdict: of ``--verify``.
        agreement: of a quantized model with float32.
        n_workers: that labelled on Ray, at most; None where this process did.
        n_explained: texts that ``--explain`` has shown.
        exit_code: of the process.
        error: why it is not 0.
        started: ``time.perf_counter`` at the start.
    """

    input: str = ""
    output: str = ""
    metrics_path: Path | None = None
    stats: RunStats = field(default_factory=RunStats)
    facts: dict[str, Any] = field(default_factory=dict)
    files: Counter[str] | None = None
    failures: list[dict[str, Any]] = field(default_factory=list)
    verdict: "Verdict | None" = None
    agreement: "Agreement | None" = None
    n_workers: int | None = None
    n_explained: int = 0
    exit_code: int = 0
    error: str | None = None
    started: float = field(default_factory=time.perf_counter)

    def metrics(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        stats = self.stats
        labels = {label: n_rows for label, n_rows in stats.labels.items() if label is not None}
        seconds = {phase: round(seconds, 3) for phase, seconds in stats.seconds.items()}
        return {
            "program": PROGRAM,
            "version": installed_version(),
            "exit_code": self.exit_code,
            "error": self.error,
            "input": self.input,
            "output": self.output,
            "files": None if self.files is None else {way: self.files[way] for way in ("done", "skipped", "failed")},
            "failures": self.failures,
            **self.facts,
            "workers": self.n_workers,
            "rows": stats.rows,
            "label_rows": labels,
            "null_label_rows": stats.labels[None],
            "empty_label_rows": stats.unlabelled,
            "status_rows": dict(stats.statuses),
            "texts": stats.texts,
            "calibration_texts": stats.calibration_texts,
            "known_texts": stats.known_texts,
            "fed_tokens": stats.fed_tokens,
            "padded_tokens": stats.padded_tokens,
            "padding_share": round(stats.padding_share, 4),
            "buckets": stats.buckets,
            "seconds": {**seconds, "total": round(time.perf_counter() - self.started, 3)},
            "rows_per_second": round(self.rows_per_second, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
            "peak_rss_mib": round(peak_rss_mib(), 1),
            "agreement": _finite(asdict(self.agreement)) if self.agreement else None,
            "verify": _finite(asdict(self.verdict)) if self.verdict else None,
        }

    def describe_files(self) -> str:
        """How many files went which way, in words."""
        files = self.files or Counter()
        parts = [f"{files['done']:,} file{'' if files['done'] == 1 else 's'} labelled"]
        parts += [f"{files['skipped']:,} finished before"] if files["skipped"] else []
        parts += [f"{files['failed']:,} failed"] if files["failed"] else []
        return ", ".join(parts)

    @property
    def rows_per_second(self) -> float:
        """Rows labelled and written, by the seconds of the run without loading the model."""
        return self.stats.rows / self.stats.seconds["run"] if self.stats.seconds["run"] else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens fed, by the seconds in which the model had work; with workers, by those of the run."""
        seconds = self.stats.seconds["model" if self.n_workers is None else "run"]
        return self.stats.fed_tokens / seconds if seconds else 0.0


def run_facts(stage: "Stage", model: "Model") -> dict[str, Any]:
    """What decided the labels: model, task, and how they were asked."""
    return {
        "model": model.name,
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "engine": stage.engine.name,
        "quantize": stage.settings.quantize,
        "task": stage.task.name,
        "labels": list(stage.task.label_names),
        "text_columns": list(stage.task.columns),
        "mode": stage.task.mode,
        "scoring": stage.scorer.name,
        "calibration": stage.task.calibration,
        "fingerprint": stage.fingerprint,
    }


def footer(facts: dict[str, Any]) -> dict[bytes, bytes]:
    """The entry of the output file's footer that says where its labels come from."""
    return {FOOTER_KEY: json.dumps({"version": installed_version(), **facts}).encode()}


def peak_rss_mib() -> float:
    """The most memory this process has had, in MiB."""
    # Linux counts the parent's memory into ru_maxrss until the program starts, and keeps the peak
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / (1 << 10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def check_metrics_path(path: Path) -> None:
    """Check that a metrics file can be written, without leaving anything behind.

    Raises:
        OutputError: it cannot.
    """
    if path.is_dir():
        raise OutputError(f"--metrics {str(path)!r} is a folder", "name a file in it")
    if path.exists() and not path.is_file():
        raise OutputError(f"--metrics {str(path)!r} is not a regular file", "name a regular file")
    _check_replaced(path)
    work = _work_path(path)
    try:
        work.touch()
        work.unlink()
    except OSError as error:
        reason = f"there is no folder {str(path.parent)!r}" if isinstance(error, FileNotFoundError) else error.strerror
        raise OutputError(
            f"--metrics {str(path)!r} cannot be written: {reason}", "write it to another folder"
        ) from error


def write_metrics(path: Path, metrics: dict[str, Any]) -> None:
    """Write a metrics file in one step, over an older one.

    Raises:
        OutputError: something else has come to be there.
        StorageError: the device failed or is full.
    """
    _check_replaced(path)
    work = _work_path(path)
    try:
        work.write_text(json.dumps(metrics, indent=2) + "\n", encoding="ascii")
        os.replace(work, os.path.realpath(path))
    except OSError as error:
        with suppress(OSError):
            work.unlink()
        raise StorageError(
            f"writing --metrics {str(path)!r} failed: {error.strerror}", "make room, or leave it out"
        ) from error


def _check_replaced(path: Path) -> None:
    """Replace older metrics only: of a folder of files, or a cache, nobody wants one overwritten by a slip."""
    with suppress(OSError), path.open("rb") as file:
        begins = file.read(64).split()
        if begins and (begins[0] != b"{" or begins[1:2] != [b'"program":']):
            raise OutputError(
                f"--metrics {str(path)!r} exists, and holds no metrics", "name another file, or remove this one"
            )


def _work_path(path: Path) -> Path:
    """Beside the file that a link points to, so that the link stays one."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.partial")


def _finite(numbers: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: null in its place."""
    return {name: None if number == float("inf") else number for name, number in numbers.items()}
