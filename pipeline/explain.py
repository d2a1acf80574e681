"""Why rows got their labels: the prompt as the model sees it, what it costs, the scores before and after calibration.

The only place where text of a row is shown, and only when that is asked for (``--explain``): never in a log, a metric
or a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from textwrap import indent

import numpy as np
from numpy.typing import NDArray

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
        pages: what is to be shown of each, in order.
    """

    n_wanted: int
    stage: Stage
    pages: list[str] = field(default_factory=list)

    def observe(self, prepared: Prepared) -> None:
        """Explain texts of a buffer whose scores are known by now, until there are enough."""
        for text in range(min(len(prepared.first_rows), self.n_wanted - len(self.pages))):
            self.pages.append("\n".join(self._page(prepared, text)))

    def _page(self, prepared: Prepared, text: int) -> Iterator[str]:
        stage, row = self.stage, int(prepared.first_rows[text])
        prompt = stage.encode_row(prepared.table, row).row(0, named=True)
        n_shared, n_fed = prompt["n_shared"], stage.scorer.readout.n_nodes
        token_ids = [*stage.encoder.prefix_ids[:n_shared], *prompt["token_ids"]]
        shown = stage.encoder.backend.decode(token_ids, skip_special_tokens=False)
        cut = ", cut in the middle" if prompt["truncated"] else ""
        yield f"row {prepared.first_row + row}: {len(token_ids)} tokens{cut}"
        yield f"  {n_shared} of them shared by all rows, {prompt['n_tokens']} its own, {n_fed} fed for the labels"
        yield indent(shown, "  | ", lambda line: True)
        yield from self._scores(prepared.scores[text : text + 1].astype(np.float64))
        yield ""

    def _scores(self, scores: NDArray[np.float64]) -> Iterator[str]:
        """A line for each of the most probable labels of one text."""
        task = self.stage.task
        raw = probabilities(scores, np.zeros_like(self.stage.prior), multi=task.multi)[0]
        after = probabilities(scores, self.stage.prior, multi=task.multi)[0]
        if np.isnan(after).any():
            yield "  no finite scores"
            return
        order = np.argsort(-after, kind="stable")
        width = max(len(name) for name in task.label_names)
        calibration = task.calibration if task.calibration != "none" else "no"
        heading = f"  {'':{width}}  {'raw':>7}  {calibration} calibration"
        yield heading + ("  threshold" if task.multi else "")
        for label in order[:MAX_LABELS]:
            line = f"  {task.label_names[label]:{width}}  {raw[label]:7.4f}  {after[label]:{len(calibration) + 12}.4f}"
            yield line + (f"  {task.label_thresholds[label]:9.2f}" if task.multi else "")
        if len(order) > MAX_LABELS:
            yield f"  and {len(order) - MAX_LABELS} other labels"
