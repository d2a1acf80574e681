"""Whether a run gave its rows the labels they would get alone: N texts, scored again on the reference path.

While the run goes on, a ``Sample`` keeps the tokens and scores of N distinct texts, spread evenly over the input; texts
that got no score (blank, or left out as over-long) are passed over. Afterwards each is scored by itself, and so is the
calibration. Nothing random: the same input gives the same sample. Memory is bounded by N prompts.

A text whose label differs is a *tie* when the reference path itself hardly tells the two labels apart: when the lead of
its own label over the run's is at most twice the rounding of the weights' type. If rounding moves every log-probability
by at most d, labels can only change places where they are 2d apart. That d is ``engine.select.TOLERANCE``, measured
on sound engines. It is not taken from the run at hand, whose differences would excuse a faulty engine.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.buckets import Bucket
from pipeline.build import contextual_prior
from pipeline.engine.model import Model
from pipeline.engine.select import TOLERANCE
from pipeline.engine.single import SingleEngine
from pipeline.errors import GateError
from pipeline.prepare import Prepared
from pipeline.scoring import log_softmax
from pipeline.stage import Stage

log = logging.getLogger(__name__)

MAX_LISTED_ROWS = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run compares with the reference path.

    Attributes:
        n_texts: texts scored again.
        n_same: of them, those with the same label.
        n_ties: those with another label that the reference path hardly tells apart.
        wrong_rows: rows of the others, numbered from 0.
        largest_difference: of any label's log-probability in any of the texts; infinite where only one of the two
            paths gave a finite score.
        tolerance: what rounding explains.
    """

    n_texts: int
    n_same: int
    n_ties: int
    wrong_rows: tuple[int, ...]
    largest_difference: float
    tolerance: float

    def __str__(self) -> str:
        ties = f", {self.n_ties} of the others ties" if self.n_ties else ""
        return (
            f"{self.n_same} of {self.n_texts} texts have the label of the reference path{ties}; "
            f"largest difference of a log-probability {self.largest_difference:.2g}"
        )

    def __add__(self, other: "Verdict") -> "Verdict":
        """Of two inputs together; each wrong row is numbered within its own."""
        return Verdict(
            self.n_texts + other.n_texts,
            self.n_same + other.n_same,
            self.n_ties + other.n_ties,
            self.wrong_rows + other.wrong_rows,
            max(self.largest_difference, other.largest_difference),
            self.tolerance,
        )

    def check(self, n_wanted: int) -> None:
        """Refuse wrong labels.

        Raises:
            GateError: a text has a wrong label.
        """
        if self.wrong_rows:
            rows = ", ".join(map(str, self.wrong_rows[:MAX_LISTED_ROWS]))
            more = ", …" if len(self.wrong_rows) > MAX_LISTED_ROWS else ""
            raise GateError(
                f"--verify {n_wanted}: {len(self.wrong_rows)} of {self.n_texts} texts get another label when they are "
                f"scored alone (rows {rows}{more}, counted from 0); largest difference of a log-probability "
                f"{self.largest_difference:.2g}, rounding explains {self.tolerance:g}",
                "use --engine single, which is slow and cannot differ, or --engine padded; and please report it",
            )

    def tell(self, n_wanted: int) -> None:
        """Say how it went."""
        log.info("verify: %s", self, extra={"fields": {"verify": asdict(self)}})
        if self.n_texts < n_wanted:
            log.info("verify: fewer than the %d texts asked for, since the others repeat them or are blank", n_wanted)
        if not self.wrong_rows and self.largest_difference > self.tolerance:
            log.warning(
                "verify: the labels are right, but log-probabilities differ by up to %.2g where rounding explains %g",
                self.largest_difference,
                self.tolerance,
            )


@dataclass(slots=True)
class Sample:
    """The texts that will be scored again.

    Attributes:
        n_wanted: how many.
        num_rows: rows of the whole input.
        stage: that labels them.
        rows: number of the row that each of the n chosen texts stands in.
        buckets: each text as a bucket of its own.
        scores: (labels,) log-probabilities of each, as the run has them: computed now or before.
    """

    n_wanted: int
    num_rows: int
    stage: Stage
    rows: list[int] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    scores: list[NDArray[np.float32]] = field(default_factory=list)
    _chosen: set[bytes] = field(default_factory=set)

    def observe(self, prepared: Prepared) -> None:
        """Choose from a buffer: for each place up to its end that has no text yet, the next one at or behind it."""
        end = prepared.first_row + prepared.table.num_rows
        unlabelled = prepared.truncated & (self.stage.settings.overlong == "null")
        free = ~unlabelled
        while self._is_due(end):
            behind = int(np.searchsorted(prepared.first_rows, self._next_place() - prepared.first_row))
            candidates = np.flatnonzero(free)
            if not len(candidates):
                return  # the places left over are filled from the next buffer
            text = int(candidates[np.searchsorted(candidates, behind) % len(candidates)])
            free[text] = False
            self._choose(prepared, text)

    def _is_due(self, end: int) -> bool:
        return len(self.rows) < self.n_wanted and self._next_place() < end

    def _next_place(self) -> int:
        """The middle of the next of N equal parts of the input."""
        return (2 * len(self.rows) + 1) * self.num_rows // (2 * self.n_wanted)

    def _choose(self, prepared: Prepared, text: int) -> None:
        """Take a text unless it is chosen already."""
        row = int(prepared.first_rows[text])
        prompt = self.stage.encode_row(prepared.table, row).row(0, named=True)
        token_ids = np.asarray(prompt["token_ids"], dtype=np.int64)
        bucket = Bucket(np.zeros(1, dtype=np.int64), token_ids, np.array([len(token_ids)]), prompt["n_shared"])
        if (key := token_ids.tobytes()) in self._chosen:
            return
        self._chosen.add(key)
        self.rows.append(prepared.first_row + row)
        self.buckets.append(bucket)
        self.scores.append(prepared.scores[text])


def spread(n_wanted: int, file_rows: Sequence[int]) -> list[int]:
    """How many of N texts, spread evenly over the rows of several files, fall into each file.

    Args:
        n_wanted: how many in all.
        file_rows: rows of each file, in order.
    """
    ends = np.cumsum([0, *file_rows])
    if not ends[-1]:
        return [0] * len(file_rows)
    middles = (2 * np.arange(n_wanted) + 1) * ends[-1] // (2 * max(1, n_wanted))
    return [int(n_texts) for n_texts in np.diff(np.searchsorted(middles, ends))]


def judge(sample: Sample, model: Model) -> Verdict:
    """Score a sample again on the reference path and compare.

    Args:
        sample: after the run.
        model: of its stage.
    """
    stage = sample.stage
    engine = SingleEngine(model, stage.encoder.prefix_ids, stage.scorer.readout)
    again = [stage.scorer.scores(engine.score(bucket))[0] for bucket in sample.buckets]
    prior = np.zeros(len(stage.task.labels))
    if stage.task.calibration == "contextual":
        prior = contextual_prior(replace(stage, engine=engine))
    if stage.task.calibration == "batch":  # made of the run's own scores, which are what is judged
        prior = stage.prior
    shape = (len(sample.rows), len(stage.task.labels))
    ours, alone = np.reshape(sample.scores, shape) - stage.prior, np.reshape(again, shape) - prior
    tolerance = TOLERANCE[model.dtype]
    if stage.task.multi:
        limits = np.array(stage.task.label_thresholds)
        with np.errstate(divide="ignore"):  # a threshold of 1 is reached by nothing, one of 0 by everything
            return compare_many(ours, alone, np.log(limits) - np.log1p(-limits), sample.rows, tolerance)
    return compare(log_softmax(ours), log_softmax(alone), sample.rows, tolerance)


def compare(ours: NDArray[np.float64], alone: NDArray[np.float64], rows: Sequence[int], tolerance: float) -> Verdict:
    """Compare calibrated log-probabilities of n texts.

    Args:
        ours: (n, labels) of the run; a text without finite scores is NaN.
        alone: (n, labels) of the reference path, likewise.
        rows: (n,) number of each text's row.
        tolerance: what rounding explains.
    """
    own, other = alone.argmax(axis=1), ours.argmax(axis=1)
    n = np.arange(len(rows))
    tie = alone[n, own] - alone[n, other] <= 2 * tolerance
    return _verdict(ours, alone, own == other, tie, rows, tolerance)


def compare_many(
    ours: NDArray[np.float64],
    alone: NDArray[np.float64],
    limits: NDArray[np.float64],
    rows: Sequence[int],
    tolerance: float,
) -> Verdict:
    """Compare calibrated log-odds of n texts that may have several labels each.

    Args:
        ours: as in ``compare``.
        alone: as in ``compare``.
        limits: (labels,) log-odds from which a label is given.
        rows: as in ``compare``.
        tolerance: as in ``compare``.
    """
    differs = (ours >= limits) != (alone >= limits)
    tie = (~differs | (np.abs(alone - limits) <= 2 * tolerance)).all(axis=1)
    return _verdict(ours, alone, ~differs.any(axis=1), tie, rows, tolerance)


def _verdict(
    ours: NDArray[np.float64], alone: NDArray[np.float64], agree: NDArray[np.bool_], close: NDArray[np.bool_],
    rows: Sequence[int], tolerance: float,
) -> Verdict:  # fmt: skip
    """Of n texts: their scores, which have the same labels if they have any, and which are close to it."""
    scored, expected = ~np.isnan(ours).any(axis=1), ~np.isnan(alone).any(axis=1)
    difference = np.abs(ours - alone).max(axis=1, initial=0.0)
    difference = np.where(scored & expected, difference, np.where(scored == expected, 0.0, np.inf))
    same = (scored == expected) & (~scored | agree)
    tie = ~same & scored & expected & close
    return Verdict(
        n_texts=len(rows),
        n_same=int(same.sum()),
        n_ties=int(tie.sum()),
        wrong_rows=tuple(sorted(row for row, wrong in zip(rows, ~same & ~tie, strict=True) if wrong)),
        largest_difference=float(difference.max(initial=0.0)),
        tolerance=tolerance,
    )
