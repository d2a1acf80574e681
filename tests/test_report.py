"""Metrics file, footer entry and closing summary: every number in its place, no word of any text."""

import json
import os
import stat
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from pipeline.command.report import FOOTER_KEY, Report, check_metrics_path, footer, peak_rss_mib, write_metrics
from pipeline.command.summary import MAX_LABELS, summary
from pipeline.errors import OutputError, StorageError
from pipeline.stats import RunStats
from pipeline.verify import Verdict

FACTS = {"model": "m", "engine": "packed", "labels": ["billing", "技術", "null"]}


def report_of(**changes: Any) -> Report:
    counts: dict[str, Any] = {
        "rows": 1000,
        "texts": 700,
        "labels": Counter({"billing": 600, "技術": 390, None: 10}),
        "statuses": Counter(ok=985, blank=10, truncated=5),
        "fed_tokens": 90_000,
        "padded_tokens": 100_000,
        "buckets": 30,
        "seconds": defaultdict(float, load=5.0, run=20.0, model=18.0, read=0.5, tokenize=1.0, write=0.25),
    }
    return Report("in.parquet", "out.parquet", stats=RunStats(**counts | changes), facts=dict(FACTS))


def lines_of(report: Report, **how: Any) -> list[str]:
    return [line.plain.rstrip() for line in summary(report, **{"bars": False} | how)]


def test_metrics_hold_every_count_once() -> None:
    metrics = json.loads(json.dumps(report_of().metrics()))
    assert metrics.pop("seconds")["total"] >= 0
    assert metrics.pop("peak_rss_mib") > 10
    assert metrics == {
        "program": "parquet-classify",
        "version": metrics["version"],
        "exit_code": 0,
        "error": None,
        "input": "in.parquet",
        "output": "out.parquet",
        "files": None,
        "failures": [],
        **FACTS,
        "workers": None,
        "rows": 1000,
        "label_rows": {"billing": 600, "技術": 390},
        "null_label_rows": 10,
        "empty_label_rows": 0,
        "status_rows": {"ok": 985, "blank": 10, "truncated": 5},
        "texts": 700,
        "calibration_texts": 0,
        "known_texts": 0,
        "fed_tokens": 90_000,
        "padded_tokens": 100_000,
        "padding_share": 0.1,
        "buckets": 30,
        "rows_per_second": 50.0,
        "tokens_per_second": 5000.0,
        "verify": None,
        "agreement": None,
    }


def test_a_label_called_null_is_not_the_null_label() -> None:
    metrics = report_of(labels=Counter({"null": 3, None: 4})).metrics()
    assert metrics["label_rows"] == {"null": 3}
    assert metrics["null_label_rows"] == 4
    lines = lines_of(report_of(labels=Counter({"null": 3, None: 4}), rows=7))
    assert [line.split()[-1] for line in lines[1:5]] == ["billing", "技術", "null", "(none)"]


def test_a_run_that_never_began_has_metrics() -> None:
    metrics = Report("in", "out", exit_code=66, error="no input").metrics()
    assert (metrics["rows"], metrics["rows_per_second"], metrics["tokens_per_second"]) == (0, 0.0, 0.0)
    assert (metrics["exit_code"], metrics["error"]) == (66, "no input")
    json.dumps(metrics)


def test_the_footer_is_json_under_its_key() -> None:
    entry = json.loads(footer(FACTS)[FOOTER_KEY])
    assert entry.pop("version")
    assert entry == FACTS


def test_peak_memory_is_that_of_the_process() -> None:
    before = peak_rss_mib()
    block = bytearray(os.urandom(1 << 20)) * 64
    assert peak_rss_mib() >= before
    assert 20 < peak_rss_mib() < 1 << 20
    del block


def test_metrics_are_written_in_one_step_with_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    write_metrics(path, {"program": "p", "rows": 1})
    write_metrics(path, {"program": "p", "rows": 2, "name": "\udcff"})
    assert json.loads(path.read_text())["rows"] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_old_metrics_stay_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "m.json"
    write_metrics(path, {"program": "p", "rows": 1})
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_metrics(path, {"program": "p", "rows": 2})
    assert json.loads(path.read_text()) == {"program": "p", "rows": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]


def test_a_place_for_metrics_is_tried_without_a_trace(tmp_path: Path) -> None:
    check_metrics_path(tmp_path / "m.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match="is a folder"):
        check_metrics_path(tmp_path)
    with pytest.raises(OutputError, match="there is no folder"):
        check_metrics_path(tmp_path / "no" / "m.json")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="Not a directory"):
        check_metrics_path(tmp_path / "file" / "m.json")


def test_the_summary_in_full() -> None:
    lines = lines_of(report_of())
    (memory,) = (line for line in lines if line.startswith("memory"))
    lines.remove(memory)
    assert memory.endswith("  MiB at most")
    assert lines == [
        "rows     1,000  50.0 rows/s",
        "labels     600   60.0 %  billing",
        "           390   39.0 %  技術",
        "             0    0.0 %  null",
        "            10    1.0 %  (none)",
        "not ok      10  blank: no text, so no label",
        "             5  truncated: longer than --max-tokens, cut in the middle",
        "texts      700  scored, each once",
        "tokens  90,000  5,000 tokens/s, padding 10.0 %",
        "time     5.0 s  loading and checking the model",
        "          18 s  model",
        "        250 ms  writing",
        "        500 ms  reading, beside the model",
        "         1.0 s  looking up and tokenizing, beside the model",
    ]


def test_bars_start_in_one_column_behind_wide_letters() -> None:
    bars = [line for line in lines_of(report_of(), bars=True) if "█" in line]
    assert len(bars) == 2
    assert len({cell_len(line[: line.index("█")]) for line in bars}) == 1


def test_many_labels_are_cut_to_the_most_frequent() -> None:
    counts: Counter[str | None] = Counter({f"label{i}": i for i in range(77)})
    report = report_of(labels=counts, rows=sum(counts.values()))
    report.facts["labels"] = list(counts)
    lines = lines_of(report)[1 : MAX_LABELS + 2]
    assert lines[0].endswith("label76")
    rest = sum(range(77 - MAX_LABELS))
    assert lines[-1].split() == [f"{rest:,}", "in", str(77 - MAX_LABELS), "other", "labels"]


def test_a_verification_is_part_of_the_summary() -> None:
    report = report_of()
    report.verdict = Verdict(20, 19, 1, (), 3.14e-5, 1e-3)
    assert "verified   19/20  same label when scored alone, log-probabilities within 3e-05" in lines_of(report)
    assert report.metrics()["verify"]["n_ties"] == 1


def test_an_empty_run_has_a_summary() -> None:
    report = Report("in", "out", facts=dict(FACTS))
    assert lines_of(report)[0].split() == ["rows", "0", "0.0", "rows/s"]


def test_a_run_over_many_files_counts_them() -> None:
    report = report_of()
    report.files = Counter(done=3, failed=1)
    assert report.metrics()["files"] == {"done": 3, "skipped": 0, "failed": 1}
    assert report.describe_files() == "3 files labelled, 1 failed"
    assert [line.split() for line in lines_of(report)[:2]] == [
        ["files", "3", "labelled"],
        ["1", "failed,", "see", "above"],
    ]
    report.files = Counter(done=1, skipped=2)
    assert report.describe_files() == "1 file labelled, 2 finished before"
    assert not any("failed, see above" in line for line in lines_of(report))


def test_what_workers_took_is_called_theirs() -> None:
    """Their seconds are added up, so that speed is by those of the run, and this process knows its own memory only."""
    report = report_of()
    report.n_workers = 4
    assert report.metrics()["workers"] == 4
    assert report.metrics()["tokens_per_second"] == 90_000 / 20
    lines = lines_of(report)
    assert any(line.endswith("model, of all workers together") for line in lines)
    assert any(line.endswith("looking up and tokenizing, beside the model, of all workers together") for line in lines)
    assert any(line.endswith("MiB at most, without the workers") for line in lines)
    assert any(line.endswith("  writing") for line in lines)
