"""Binding a task to a model: everything that decides a label, found out once, before the first row."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.buckets import Bucket, cut_buckets
from pipeline.classes import class_scorer
from pipeline.continuations import ContinuationTree
from pipeline.engine.budget import CPU_TOKENS, default_batch_tokens
from pipeline.engine.fused import FusedEngine
from pipeline.engine.int8 import SMOOTHING_TEXTS, quantized, why_not_int8
from pipeline.engine.model import Model
from pipeline.engine.select import Engine, choose_engine
from pipeline.errors import UsageError
from pipeline.fingerprint import label_fingerprint, prompt_fingerprint, score_fingerprint
from pipeline.head import FIT_AGAIN, head_scorer, load_head
from pipeline.label_store import LabelStore
from pipeline.passes import read_texts
from pipeline.plain_prompt import build_classifier_encoder
from pipeline.prompt import PROBES, PromptEncoder, build_encoder
from pipeline.readout import HiddenStates, Readout
from pipeline.scoring import CONTENT_FREE, Scorer, choose_scorer, label_prior, yes_no_scorer
from pipeline.settings import DEFAULT_MAX_TOKENS, UNQUANTIZED, Settings
from pipeline.stage import MAX_LISTED, Stage
from pipeline.stats import RunStats
from pipeline.stored_scores import StoredScores
from pipeline.task import Task

log = logging.getLogger(__name__)


def build_stage(task: Task, model: Model, settings: Settings) -> Stage:
    """Bind a task to a model: encode the prompt, choose and check the engine, measure the prior of calibration.

    Args:
        task: its text columns may still be unknown; a stage built from it can score but not run.
        model: a loaded model.
        settings: limits and sizes.

    Returns:
        The stage. The prior of batch calibration is still zeros: see ``with_batch_prior``.

    Raises:
        UsageError: prompt, labels and limits do not go together for this model, or the task's head is not for it, or
            the model cannot be quantized.
        ModelError: the model cannot be used.
    """
    encoder = _encoder(task, model, settings)
    prompt_by = prompt_fingerprint(encoder, model.digest)
    task, scorer = _scorer(task, model, encoder, prompt_by)
    # behind the longest prompt there must be room for the longest label
    n_label = max(scorer.readout.depths, default=0) if isinstance(scorer.readout, ContinuationTree) else 0
    encoder = _within_context(encoder, model, n_label)
    scores_by = score_fingerprint(prompt_by, task, encoder, scorer, settings.quantize)
    engine, unquantized = _engine(model, settings, encoder, scorer.readout)
    stage = Stage(
        task=task,
        settings=settings,
        encoder=encoder,
        scorer=scorer,
        engine=engine,
        prior=np.zeros(len(task.labels)),
        max_batch_tokens=settings.max_batch_tokens or default_batch_tokens(model, encoder.max_tokens),
        prompt_fingerprint=prompt_by,
        score_fingerprint=scores_by,
        fingerprint=label_fingerprint(scores_by, task),
        unquantized=unquantized,
    )
    return replace(stage, prior=contextual_prior(stage)) if task.calibration == "contextual" else stage


def hidden_states(task: Task, model: Model, settings: Settings, texts: Sequence[str]) -> NDArray[np.float32]:
    """(n, 2 * hidden size) of n texts under the task's prompt: see ``HiddenStates``.

    Raises:
        UsageError: as ``build_stage``.
        ModelError: as ``build_stage``.
    """
    encoder = _within_context(_encoder(task, model, settings), model, 0)
    engine, _ = _engine(model, settings, encoder, HiddenStates())
    encoded = encoder.encode(pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}))
    budget = settings.max_batch_tokens or default_batch_tokens(model, encoder.max_tokens)
    return read_texts(engine, encoded, RunStats(), max_batch_tokens=budget, n_nodes=0)


def with_store(stage: Stage, model: Model, store: LabelStore) -> Stage:
    """The same stage, using the scores of a store and keeping its own there.

    Args:
        stage: without a store.
        model: of the stage.
        store: open as long as the stage is used.

    Raises:
        CacheError: a shared store is damaged.
        StorageError: the store cannot be written.
    """
    labels = stage.task.label_names
    shown = ", ".join(labels[:MAX_LISTED]) + (", …" if len(labels) > MAX_LISTED else "")
    dtype = str(model.dtype).removeprefix("torch.")
    scores = StoredScores(store, stage.score_fingerprint, len(labels), f"{model.name}, {dtype}: {shown}")
    return replace(stage, store=scores)


def with_batch_prior(stage: Stage, texts: Sequence[str], stats: RunStats) -> Stage:
    """The same stage with the prior of batch calibration, which is the same whenever these texts are.

    Args:
        stage: of a task with batch calibration; if it has a store, the texts' scores are kept there.
        texts: distinct and not blank: the first ones of the input.
        stats: counts of what the model did are added to it.

    Raises:
        CacheError: a shared store is damaged.
        StorageError: the store cannot be read or written.
    """
    scores = stage.score_kept(pl.Series("text", texts, dtype=pl.String), stats)
    return replace(
        stage,
        prior=label_prior(scores.astype(np.float64)),
        fingerprint=label_fingerprint(stage.score_fingerprint, stage.task, texts),
    )


def in_int8(engine: FusedEngine, encoder: PromptEncoder, readout: Readout) -> FusedEngine:
    """An engine like a float one that computes in int8, smoothed for a prompt.

    Args:
        engine: of a model that can be quantized.
        encoder: the prompt.
        readout: that the engine was built with.
    """
    texts = encoder.encode(pl.DataFrame({"text": SMOOTHING_TEXTS}))
    return quantized(engine, cut_buckets(texts, max_batch_tokens=CPU_TOKENS, extra_tokens=readout.n_nodes))


def contextual_prior(stage: Stage) -> NDArray[np.float64]:
    """(labels,) what the stage's engine gives labels for texts without content."""
    texts = stage.encoder.encode(pl.DataFrame({"text": CONTENT_FREE}))
    return label_prior(stage.score_texts(texts, RunStats()).astype(np.float64))


def _encoder(task: Task, model: Model, settings: Settings) -> PromptEncoder:
    max_tokens = settings.max_tokens or DEFAULT_MAX_TOKENS
    if model.class_names is not None:
        max_tokens = min(max_tokens, model.max_context)
        return build_classifier_encoder(model.tokenizer, max_tokens=max_tokens, causal=model.is_causal)
    encoder = build_encoder(task, model.tokenizer, max_tokens=max_tokens)
    if not encoder.exact:
        log.warning("model %r: its tokenizer needs whole prompts; tokenizing is slower", model.name)
    return encoder


def _scorer(task: Task, model: Model, encoder: PromptEncoder, prompt_by: str) -> tuple[Task, Scorer]:
    """How labels are compared, and the task as far as that decides it: what was fitted is not calibrated again."""
    names = task.label_names
    if model.class_names is not None:
        return class_scorer(task, model.class_names, model.multi_label)
    if task.head is not None:
        if task.scoring != "auto":
            raise UsageError(f"--scoring {task.scoring} has no effect with a head", "leave scoring as it is: auto")
        head = load_head(task.head)
        if head.fitted_for != prompt_by:
            raise UsageError(
                f"head: {str(task.head)!r} was fitted for another model, --dtype or prompt than this one",
                FIT_AGAIN,
            )
        return replace(task, calibration="none"), head_scorer(head, names, multi=task.multi, path=task.head)
    if task.multi:
        return task, yes_no_scorer(names, encoder.yes_no(task))
    return task, choose_scorer(task.scoring, names, encoder.continuations(task.label_answers, task.answer))


def _within_context(encoder: PromptEncoder, model: Model, n_label: int) -> PromptEncoder:
    """The encoder with a limit that leaves room for ``n_label`` tokens in the model's context."""
    if model.max_context - n_label >= encoder.max_tokens:
        return encoder
    context = f"the context of model {model.name!r} ({model.max_context}, {n_label} of them for the longest label)"
    return encoder.limited(model.max_context - n_label, context=context)


def _engine(model: Model, settings: Settings, encoder: PromptEncoder, readout: Readout) -> tuple[Engine, Engine | None]:
    """The engine, and if it is quantized the one it was made from, which agrees with the reference path."""
    engine = choose_engine(settings.engine, model, encoder.prefix_ids, readout, _probe(encoder))
    if settings.quantize == "none":
        return engine, None
    if (reason := why_not_int8(model)) or not isinstance(engine, FusedEngine):
        reason = reason or "the fused engine does not agree with the reference path"
        raise UsageError(f"--quantize {settings.quantize} is not for model {model.name!r}: {reason}", UNQUANTIZED)
    return in_int8(engine, encoder, readout), engine


def _probe(encoder: PromptEncoder) -> Bucket:
    (probe, *_) = cut_buckets(encoder.encode(pl.DataFrame({"text": PROBES[:3]})), max_batch_tokens=1 << 20)
    return probe
