"""Why rows got their labels: the prompt as the model sees it, what it costs, the scores before and after calibration.

The only place where text of a row is shown, and only when that is asked for (``--explain``): never in a log, a metric
or a file. What could drive a terminal is shown as escapes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import indent

import numpy as np
from numpy.typing import NDArray

from pipeline.decision import decide
from pipeline.prepare import Prepared
from pipeline.scoring import probabilities
from pipeline.stage import Stage

MAX_LABELS = 10


@dataclass(slots=True)
class Explanations:
    """Explains the first N distinct texts that it is shown.

    Attributes:
        n_wanted: how many.
        stage: that labels them; its task is bound to the input.
        where: put before the number of a row.
        show: is given each explanation.
        n_shown: how many there were.
    """

    n_wanted: int
    stage: Stage
    where: str
    show: Callable[[str], None]
    n_shown: int = 0

    def observe(self, prepared: Prepared) -> None:
        """Explain texts of a buffer whose scores are known by now, until there are enough."""
        for text in range(min(len(prepared.first_rows), self.n_wanted - self.n_shown)):
            self.show("\n".join([*self._page(prepared, text), "", ""]))
            self.n_shown += 1

    def _page(self, prepared: Prepared, text: int) -> Iterator[str]:
        stage, row = self.stage, int(prepared.first_rows[text])
        prompt = stage.encode_row(prepared.table, row).row(0, named=True)
        n_shared, n_fed = prompt["n_shared"], stage.scorer.readout.n_nodes
        token_ids = [*stage.encoder.prefix_ids[:n_shared], *prompt["token_ids"]]
        shown = stage.encoder.backend.decode(token_ids, skip_special_tokens=False)
        cut = ", cut in the middle" if prompt["truncated"] else ""
        yield f"{self.where}row {prepared.first_row + row}: {len(token_ids)} tokens{cut}"
        yield f"  {n_shared} of them shared by all rows, {prompt['n_tokens']} its own, {n_fed} fed for the labels"
        yield indent(_printable(shown), "  | ", lambda line: True)
        if prompt["truncated"] and stage.settings.overlong == "null":
            yield "  → null: too long, and --overlong is null"
            return
        yield from self._scores(prepared.scores[text : text + 1].astype(np.float64))

    def _scores(self, scores: NDArray[np.float64]) -> Iterator[str]:
        """What one text gets, then a line for each of the most probable labels."""
        task = self.stage.task
        raw = probabilities(scores, np.zeros_like(self.stage.prior), multi=task.multi)[0]
        after = probabilities(scores, self.stage.prior, multi=task.multi)
        decision = decide(after, task)
        if decision.failed[0]:
            yield "  → null: the model gives no finite scores"
            return
        label = decision.labels[0].as_py()
        given = ", ".join(label) or "no label" if isinstance(label, list) else "null" if label is None else label
        yield f"  → {given}" + (": not sure enough" if decision.low_score[0] else "")
        order = np.argsort(-after[0], kind="stable")
        width = max(len(name) for name in task.label_names)
        calibration = f"{'no' if task.calibration == 'none' else task.calibration} calibration"
        yield f"    {'':{width}}  {'raw':>7}  {calibration}" + ("  threshold" if task.multi else "")
        for place in order[:MAX_LABELS].tolist():
            line = f"    {task.label_names[place]:{width}}  {raw[place]:7.4f}  {after[0, place]:{len(calibration)}.4f}"
            yield line + (f"  {task.label_thresholds[place]:9.2f}" if task.multi else "")
        if len(order) > MAX_LABELS:
            yield f"    and {len(order) - MAX_LABELS} less probable labels"


def _printable(text: str) -> str:
    """A text whose control characters are escapes, line ends excepted."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
