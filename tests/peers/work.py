"""The work that all engines are given: token ids of whole prompts, dealt out in rounds, and how a label is decided.

Made once by the pipeline's own encoder and kept in a file, so that an engine's process needs nothing of the pipeline.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class Question:
    """What every prompt asks.

    Attributes:
        workload: the pipeline's name for it.
        prefix_ids: tokens that every prompt begins with.
        label_ids: first token of each label's answer, (L,); no two are the same.
        bias: what is added to each label's logit before they are compared, (L,): calibration.
    """

    workload: str
    prefix_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    bias: tuple[float, ...]

    def decide(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """(R, L) logits to (R,) labels."""
        return (logits + np.array(self.bias)).argmax(axis=1)


@dataclass(frozen=True, slots=True)
class Work:
    """A question, and prompts of long-tailed tickets: the deal to warm up with first, then one deal for each round.

    Within a deal prompts come in no order; deals are alike in their lengths.
    """

    question: Question
    deals: tuple[tuple[tuple[int, ...], ...], ...]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def load_work(path: Path) -> Work:
    fields = json.loads(path.read_text(encoding="utf-8"))
    question = {key: value if isinstance(value, str) else tuple(value) for key, value in fields["question"].items()}
    return Work(Question(**question), tuple(tuple(map(tuple, deal)) for deal in fields["deals"]))


def make_work(workload: str, model_folder: Path, n_rows: int, n_rounds: int) -> Work:
    """Encode a workload's first rows as the stage does; of every ``n_rounds + 1`` rows one is for the warm-up."""
    import polars as pl

    from pipeline.bench.workload import load_workload
    from pipeline.build import build_stage
    from pipeline.continuations import ContinuationTree
    from pipeline.engine.load import load_model
    from pipeline.settings import Settings

    model = load_model(str(model_folder), device="cpu", dtype="float32")
    n_deals = n_rounds + 1
    load = load_workload(workload, n_rows + n_rows // n_rounds, model.tokenizer)
    stage = build_stage(load.task, model, Settings())
    tree = stage.scorer.readout
    if not isinstance(tree, ContinuationTree) or tree.n_nodes or len(tree.edges) != len(load.task.label_names):
        raise SystemExit(f"--workload {workload}: its labels are not decided by their first tokens")
    frame = stage.encoder.encode(pl.DataFrame({"text": load.texts}))
    prefix = stage.encoder.prefix_ids
    if frame["n_shared"].min() != len(prefix):
        raise SystemExit(f"--workload {workload}: not every prompt begins with the shared prefix")
    # dealt out by length, there and back again, so that deals are alike; then in no order
    by_length = np.argsort(-frame["n_tokens"].to_numpy().astype(np.int64), kind="stable")
    there_and_back = np.concatenate([np.arange(n_deals), np.arange(n_deals)[::-1]])
    dealt_to = np.resize(there_and_back, len(by_length))
    shuffled = np.random.default_rng(0).permutation
    deals = (shuffled(by_length[dealt_to == deal]) for deal in range(n_deals))
    return Work(
        Question(workload, tuple(prefix), tuple(token for _, token in tree.edges), tuple((-stage.prior).tolist())),
        tuple(tuple((*prefix, *frame["token_ids"][int(row)].to_list()) for row in deal) for deal in deals),
    )
