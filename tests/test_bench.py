"""The benchmark's own arithmetic, on a tiny model; no clock is judged here."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.bench.__main__ import main
from pipeline.bench.label_counts import build_label_paths
from pipeline.bench.paths import build_paths
from pipeline.bench.workload import many_labels, seed_tickets
from pipeline.engine.load import load_model


def test_the_workload_is_long_tailed_and_the_same_every_time() -> None:
    tickets = seed_tickets(600)
    n_words = np.array([len(ticket.split()) for ticket in tickets])
    assert tickets == seed_tickets(600)
    assert n_words.min() == 12
    assert n_words.max() == 400
    assert 55 <= np.median(n_words) <= 66
    assert 230 <= np.quantile(n_words, 0.95) <= 290


def test_every_path_scores_every_row_once_and_counts_its_tokens(tiny_model_folder: Path) -> None:
    paths = build_paths(load_model(str(tiny_model_folder)), 70, max_batch_tokens=2000)
    for path in paths:
        rows = np.concatenate([bucket.rows for bucket in path.buckets])
        assert sorted(rows) == list(range(70)), path.name
        assert path.useful_tokens == paths[0].computed_tokens
    computed = {path.name: path.computed_tokens for path in paths}
    assert computed["packed + shared prefix"] < computed["one at a time"] < computed["batches of 32, arriving order"]
    assert computed["batches of 32, sorted"] < computed["batches of 32, arriving order"]


def test_it_prints_a_table_and_one_line_of_json(tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "40", "--model", str(tiny_model_folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    summary = json.loads(lines[-1])
    figures = {path["path"]: path for path in summary["paths"]}
    assert len(figures) == 6
    for name, path in figures.items():
        assert path["agreement"] == 1.0, name
        assert path["largest_difference"] < 1e-3, name
        assert any(line.startswith(name) for line in lines)
    assert figures["one at a time"]["speedup"] == 1.0
    assert figures["packed + shared prefix"]["padding_share"] == 0.0
    assert 0 < figures["padded buckets"]["padding_share"] < figures["batches of 32, arriving order"]["padding_share"]
    assert summary["ceiling_gflops"] > 0
    assert summary["label_rows"] == 20
    counts = summary["label_counts"]
    assert [(row["labels"], row["scoring"]) for row in counts] == [
        (n_labels, scoring) for n_labels in (3, 10, 77) for scoring in ("constrained", "sequence", "head")
    ]
    assert all(row["items_per_s"] > 0 for row in counts)


def test_constrained_scoring_feeds_few_label_tokens_even_for_many_labels(tiny_model_folder: Path) -> None:
    paths = build_label_paths(load_model(str(tiny_model_folder)), 20, max_batch_tokens=1024)
    for path in paths:
        assert sorted(np.concatenate([bucket.rows for bucket in path.buckets])) == list(range(20))
    fed = {(path.n_labels, path.name): path.n_nodes for path in paths}
    for n_labels in (3, 10, 77):
        assert fed[n_labels, "head"] == 0
        assert fed[n_labels, "constrained"] < fed[n_labels, "sequence"]
    assert fed[10, "sequence"] < fed[77, "sequence"]


def test_many_labels_are_of_several_words_and_begin_alike() -> None:
    labels = many_labels(77)
    assert len(set(labels)) == 77
    assert many_labels(3) == ("bank transfer charged twice", "card payment limit", "refund pending")
    assert len({label.split()[0] for label in labels}) < 10


def test_a_model_that_is_not_there_is_one_line_and_the_documented_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path / "nothing")]) == 69
    assert capsys.readouterr().err.startswith("error: there is no model folder")
