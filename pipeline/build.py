"""Binding a task to a model: everything that decides a label, found out once, before the first row."""

import logging
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.buckets import cut_buckets
from pipeline.engine.model import Model
from pipeline.engine.select import choose_engine
from pipeline.fingerprint import label_fingerprint, score_fingerprint
from pipeline.label_store import LabelStore
from pipeline.prompt import PROBES, build_encoder
from pipeline.scoring import CONTENT_FREE, choose_tree, contextual_prior
from pipeline.settings import DEFAULT_MAX_TOKENS, Settings
from pipeline.stage import MAX_LISTED, Stage
from pipeline.stats import RunStats
from pipeline.stored_scores import StoredScores
from pipeline.task import Task

log = logging.getLogger(__name__)

# Padded tokens of one pass. On a CPU larger activations fall out of its caches; a GPU is only filled by more.
MAX_BATCH_TOKENS_CPU = 1024
MAX_BATCH_TOKENS_ACCELERATOR = 16384


def build_stage(task: Task, model: Model, settings: Settings) -> Stage:
    """Bind a task to a model: encode the prompt, choose and check the engine, measure the calibration prior.

    Args:
        task: its text columns may still be unknown; a stage built from it can score but not run.
        model: a loaded model.
        settings: limits and sizes.

    Raises:
        UsageError: prompt, labels and limits do not go together for this model.
        ModelError: the model cannot be used.
    """
    max_tokens = settings.max_tokens or DEFAULT_MAX_TOKENS
    encoder = build_encoder(task, model.tokenizer, max_tokens=max_tokens)
    if not encoder.exact:
        log.warning("model %r: its tokenizer needs whole prompts; tokenizing is slower", model.name)
    tree = choose_tree(task.scoring, task.label_names, encoder.continuations(task.label_names, task.answer))
    # behind the longest prompt there must be room for the longest label
    n_label = max(tree.depths, default=0)
    if model.max_context - n_label < max_tokens:
        context = f"the context of model {model.name!r} ({model.max_context}, {n_label} of them for the longest label)"
        encoder = encoder.limited(model.max_context - n_label, context=context)
    probes = encoder.encode(pl.DataFrame({"text": PROBES[:3]}))
    budget = settings.max_batch_tokens or (
        MAX_BATCH_TOKENS_CPU if model.device.type == "cpu" else MAX_BATCH_TOKENS_ACCELERATOR
    )
    (probe, *_) = cut_buckets(probes, max_batch_tokens=1 << 20)
    scores_by = score_fingerprint(task, encoder, tree, model.digest)
    stage = Stage(
        task=task,
        settings=settings,
        encoder=encoder,
        tree=tree,
        engine=choose_engine(settings.engine, model, encoder.prefix_ids, tree, probe),
        prior=np.zeros(len(task.labels)),
        max_batch_tokens=budget,
        score_fingerprint=scores_by,
        fingerprint=label_fingerprint(scores_by, task),
    )
    return replace(stage, prior=measure_prior(stage))


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


def measure_prior(stage: Stage) -> NDArray[np.float64]:
    """(labels,) log-probabilities for calibration to divide out, by the stage's engine; zeros for none."""
    if stage.task.calibration == "none":
        return np.zeros(len(stage.task.labels))
    texts = stage.encoder.encode(pl.DataFrame({"text": CONTENT_FREE}))
    return contextual_prior(stage.score_texts(texts, RunStats()).astype(np.float64))
