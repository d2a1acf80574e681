"""What a run counts. Plain numbers that the stage adds to and the report reads; never a word of any text."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# Phases that workers elsewhere go through, too.
WORKER_PHASES = frozenset({"read", "tokenize", "model", "verify"})


@dataclass(slots=True)
class RunStats:
    """Counts of one run.

    Attributes:
        rows: rows labelled.
        texts: texts sent through the model; identical texts of one buffer are sent once.
        calibration_texts: texts sent through the model before, to calibrate.
        known_texts: distinct texts of each buffer that were not, since their scores were known.
        labels: rows per label; None counts null labels. A row with several counts for each.
        unlabelled: rows whose list of labels is empty.
        statuses: rows per status.
        failed_rows: of the last buffer with such rows, the first few that have no finite scores.
        fed_tokens: tokens that went through the model for them: their own and those of the labels.
        padded_tokens: the same with the padding of their buckets.
        buckets: buckets scored.
        splits: passes that ran out of memory and were split.
        buffer_rows: rows of the buffer that the model works on, which ``rows`` does not count yet; else 0.
        buffer_tokens: tokens that this buffer feeds in all.
        buffer_end_tokens: what ``fed_tokens`` will be at its end.
        seconds: wall-clock seconds by phase; ``read`` and ``tokenize`` run beside ``model``.
    """

    rows: int = 0
    texts: int = 0
    calibration_texts: int = 0
    known_texts: int = 0
    labels: Counter[str | None] = field(default_factory=Counter)
    unlabelled: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failed_rows: list[int] = field(default_factory=list)
    fed_tokens: int = 0
    padded_tokens: int = 0
    buckets: int = 0
    splits: int = 0
    buffer_rows: int = 0
    buffer_tokens: int = 0
    buffer_end_tokens: int = 0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def padding_share(self) -> float:
        """Share of the buckets' rectangles that is padding, 0 to 1."""
        return 1 - self.fed_tokens / self.padded_tokens if self.padded_tokens else 0.0

    def begin_buffer(self, n_rows: int, n_tokens: int) -> None:
        """A buffer of rows goes to the model, which will be fed so many tokens for it."""
        self.buffer_rows, self.buffer_tokens = n_rows, n_tokens
        self.buffer_end_tokens = self.fed_tokens + n_tokens

    def end_buffer(self) -> None:
        """The rows of the buffer are labelled."""
        self.rows += self.buffer_rows
        self.buffer_rows = self.buffer_tokens = 0

    def add(self, other: "RunStats") -> None:
        """Add rows that were labelled elsewhere, and what it took; seconds of several workers are added up."""
        self.rows += other.rows
        self.texts += other.texts
        self.known_texts += other.known_texts
        self.labels.update(other.labels)
        self.unlabelled += other.unlabelled
        self.statuses.update(other.statuses)
        self.calibration_texts += other.calibration_texts
        self.fed_tokens += other.fed_tokens
        self.padded_tokens += other.padded_tokens
        self.buckets += other.buckets
        self.splits += other.splits
        for phase in WORKER_PHASES & other.seconds.keys():
            self.seconds[phase] += other.seconds[phase]

    def take_back(self, other: "RunStats") -> None:
        """Take back the rows that were added: they are in no output. The work done stays counted."""
        self.rows -= other.rows
        self.labels -= other.labels
        self.unlabelled -= other.unlabelled
        self.statuses -= other.statuses

    def add_passes(self, other: "RunStats") -> None:
        """Add what the model did to calibrate: its texts are counted again when their rows come."""
        self.calibration_texts += other.texts
        self.fed_tokens += other.fed_tokens
        self.padded_tokens += other.padded_tokens
        self.buckets += other.buckets
        self.splits += other.splits

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Take back the rows that a block counted if it fails: they are in no output. The work done stays counted."""
        rows, labels, unlabelled, statuses = self.rows, self.labels.copy(), self.unlabelled, self.statuses.copy()
        try:
            yield
        except BaseException:
            self.rows, self.labels, self.unlabelled, self.statuses = rows, labels, unlabelled, statuses
            self.buffer_rows = self.buffer_tokens = 0
            self.buffer_end_tokens = self.fed_tokens
            raise

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall-clock time of a block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
