"""Settings of a run that are not the task: output columns, limits, sizes. Frozen, checked once."""

from dataclasses import dataclass
from typing import Literal, get_args

from pipeline.errors import UsageError

Overlong = Literal["truncate", "null", "fail"]
EngineKind = Literal["auto", "fused", "packed", "padded", "single"]

DEFAULT_MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Settings:
    """How a stage runs.

    Attributes:
        label_column: name of the added label column.
        score_column: name of the added score column, None for none.
        status_column: name of the added status column, None for none.
        max_tokens: most tokens of a whole prompt; None for 2048, or the model's context if smaller.
        overlong: what becomes of longer prompts: cut in the middle, a null label, or the end of the run.
        engine: see ``choose_engine``.
        buffer_rows: most rows in a buffer.
        max_batch_tokens: most padded tokens in one forward pass; None for the device's default.
    """

    label_column: str = "label"
    score_column: str | None = None
    status_column: str | None = None
    max_tokens: int | None = None
    overlong: Overlong = "truncate"
    engine: EngineKind = "auto"
    buffer_rows: int = 8192
    max_batch_tokens: int | None = None

    def __post_init__(self) -> None:
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
