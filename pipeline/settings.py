"""Settings of a run that are not the task: output columns, decision limits, sizes. Frozen, checked once."""

from dataclasses import dataclass
from typing import Literal, get_args

from pipeline.errors import UsageError

Overlong = Literal["truncate", "null", "fail"]
EngineKind = Literal["auto", "packed", "padded", "single"]

DEFAULT_MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Settings:
    """How a stage runs.

    Attributes:
        label_column: name of the added label column.
        score_column: name of the added score column, None for none.
        status_column: name of the added status column, None for none.
        min_score: rows whose label is less probable than this get ``default_label`` and status ``low_score``.
        default_label: label of such rows; None for null.
        max_tokens: most tokens of a whole prompt; None for 2048, or the model's context if smaller.
        overlong: what becomes of longer prompts: cut in the middle, a null label, or the end of the run.
        engine: see ``choose_engine``.
        buffer_rows: most rows in a buffer.
        max_batch_tokens: most padded tokens in one forward pass; None for the device's default.
    """

    label_column: str = "label"
    score_column: str | None = None
    status_column: str | None = None
    min_score: float = 0.0
    default_label: str | None = None
    max_tokens: int | None = None
    overlong: Overlong = "truncate"
    engine: EngineKind = "auto"
    buffer_rows: int = 8192
    max_batch_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_score <= 1.0:
            raise UsageError(f"--min-score {self.min_score}: a probability is between 0 and 1")
        if self.default_label is not None and self.min_score == 0.0:
            raise UsageError(
                f"--default-label {self.default_label!r} has no effect without --min-score",
                "give --min-score P, the probability below which a row gets the default label",
            )
        for flag, value in (
            ("--max-tokens", self.max_tokens),
            ("--buffer-rows", self.buffer_rows),
            ("--max-batch-tokens", self.max_batch_tokens),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value}: must be at least 1")
        for flag, choice, choices in (
            ("--overlong", self.overlong, get_args(Overlong)),
            ("--engine", self.engine, get_args(EngineKind)),
        ):
            if choice not in choices:
                raise UsageError(f"{flag} {choice!r}: must be one of {', '.join(choices)}")
        columns = [c for c in (self.label_column, self.score_column, self.status_column) if c is not None]
        if "" in columns:
            raise UsageError(
                "an added column has an empty name", "give --label-column, --score-column, --status-column names"
            )
