"""``--quantize int8`` through the command line: what is refused, the gate before the first label, what is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.agreement import Agreement
from pipeline.classify import main
from pipeline.command.options import parse
from pipeline.engine import int8
from pipeline.errors import UsageError
from pipeline.stage import Stage
from tests.tiny import save_tiny_model

TEXTS = [f"Ticket {i}: the invoice of May shows {i * i} and not {7 * i}" for i in range(40)]
INT8 = ("--quantize", "int8", "--min-agreement", 0.5)

Run = Callable[..., int]


def write(path: Path, texts: list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


@pytest.fixture
def metrics_path(tmp_path: Path) -> Path:
    return tmp_path / "m.json"


@pytest.fixture
def run(tiny_model_folder: Path, output: Path, metrics_path: Path) -> Run:
    def run(source: Path, *flags: object) -> int:
        words = [source, output, "--metrics", metrics_path, "--model", tiny_model_folder, *flags]
        return main([str(word) for word in words])

    return run


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smoothing that leaves half of the channels without levels."""
    monkeypatch.setattr(int8, "smoothing_factors", lambda largest, _: torch.exp2(torch.arange(len(largest)) % 2 * 9.0))


def metrics(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_quantized_run_tells_so_and_how_much_it_agrees(
    run: Run, output: Path, metrics_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write(tmp_path / "in.parquet", TEXTS), *INT8, "--explain", 1) == 0
    told, found = capsys.readouterr(), metrics(metrics_path)
    assert (found["engine"], found["dtype"], found["quantize"]) == ("fused", "float32", "int8")
    assert found["agreement"]["n_texts"] == 40
    assert 0.5 < found["agreement"]["balanced"] <= 1
    assert found["seconds"]["agreement"] > 0
    assert found["texts"] == 40, "texts of the comparison are no rows"
    assert "fused engine, half of the products in int8" in told.err
    assert "% of 40 texts (balanced), largest logit difference" in told.err
    assert "comparing int8 with float32" in told.err
    assert told.out.startswith("row 0:")
    entry = json.loads(pq.read_metadata(output).metadata[b"parquet_classify"])
    assert (entry["quantize"], entry["fingerprint"]) == ("int8", found["fingerprint"])


def test_without_it_nothing_is_compared(run: Run, metrics_path: Path, tmp_path: Path) -> None:
    assert run(write(tmp_path / "in.parquet", TEXTS), "--min-agreement", "100%") == 0
    assert (metrics(metrics_path)["quantize"], metrics(metrics_path)["agreement"]) == ("none", None)


@pytest.mark.usefixtures("spoilt")
def test_too_little_agreement_ends_the_run_before_a_row_is_labelled(
    run: Run, output: Path, metrics_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.parquet", TEXTS)
    assert run(source, "--quantize", "int8") == 3
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: --quantize int8: int8 agrees with float32 on ")
    assert error.endswith("; --min-agreement asks for 95 %")
    assert "--quantize none" in hint and "--min-agreement" in hint
    assert not output.exists()
    found = metrics(metrics_path)
    assert (found["exit_code"], found["texts"]) == (3, 0)
    assert found["agreement"]["balanced"] < 0.95
    assert run(source, "--quantize", "int8", "--min-agreement", "0%") == 0


@pytest.mark.parametrize(
    ("shares", "exit_code", "n_compared"),
    [([0.96], 0, [64]), ([0.94, 0.97], 0, [64, 70]), ([0.94, 0.94], 3, [64, 70])],
)
def test_more_texts_are_asked_where_the_first_do_not_agree_enough(
    shares: list[float],
    exit_code: int,
    n_compared: list[int],
    run: Run,
    metrics_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []

    def measure(_: Stage, texts: list[str]) -> Agreement:
        compared.append(len(texts))
        return Agreement(len(texts), 0, shares[len(compared) - 1], 3, 0.5)

    monkeypatch.setattr("pipeline.agreement.measure_agreement", measure)
    source = write(tmp_path / "in.parquet", [f"{text} {i}" for i in range(2) for text in TEXTS[:35]])
    assert run(source, "--quantize", "int8") == exit_code
    assert compared == n_compared
    assert metrics(metrics_path)["agreement"]["balanced"] == shares[-1]


def test_one_label_for_all_is_told(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path / "in.parquet", TEXTS[:1]), *INT8) == 0
    assert "one label: their agreement tells little" in capsys.readouterr().err


def test_an_input_without_texts_has_nothing_to_compare(run: Run, metrics_path: Path, tmp_path: Path) -> None:
    assert run(write(tmp_path / "in.parquet", [None, " "]), *INT8) == 0
    assert metrics(metrics_path)["agreement"] is None


def test_batch_calibration_is_measured_on_the_texts_compared(run: Run, metrics_path: Path, tmp_path: Path) -> None:
    assert run(write(tmp_path / "in.parquet", TEXTS), *INT8, "--calibration", "batch") == 0
    assert metrics(metrics_path)["agreement"]["n_texts"] == 40


# Folders, caches


def test_a_folder_is_compared_once_on_the_first_file_with_texts(
    tiny_model_folder: Path, tmp_path: Path, metrics_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in" / "a.parquet", [None])
    write(tmp_path / "in" / "b.parquet", TEXTS[:7])
    write(tmp_path / "in" / "c.parquet", TEXTS)
    words = [tmp_path / "in", tmp_path / "out", "--metrics", metrics_path, "--model", tiny_model_folder, *INT8]
    assert main([str(word) for word in words]) == 0
    assert capsys.readouterr().err.count("agrees with float32 on") == 1
    assert metrics(metrics_path)["agreement"]["n_texts"] == 7
    assert main([str(word) for word in words]) == 0
    found = metrics(metrics_path)
    assert (found["files"]["skipped"], found["agreement"]) == (3, None), "nothing is left to label"


@pytest.mark.usefixtures("spoilt")
def test_a_folder_that_does_not_agree_ends_as_a_whole(
    tiny_model_folder: Path, tmp_path: Path, metrics_path: Path
) -> None:
    write(tmp_path / "in" / "b.parquet", TEXTS)
    words = [tmp_path / "in", tmp_path / "out", "--metrics", metrics_path, "--model", tiny_model_folder]
    assert main([*map(str, words), "--quantize", "int8"]) == 3
    assert not [*(tmp_path / "out").glob("*.parquet")]
    assert metrics(metrics_path)["failures"] == []


def test_a_cache_keeps_scores_in_int8_and_in_float32_apart(run: Run, metrics_path: Path, tmp_path: Path) -> None:
    source, flags = write(tmp_path / "in.parquet", TEXTS), ("--cache", tmp_path / "c", "--overwrite")
    known = []
    for quantize in ((), INT8, INT8, ()):
        assert run(source, *flags, *quantize) == 0
        known.append(metrics(metrics_path)["known_texts"])
    assert known == [0, 0, 40, 40]


# What is refused


def test_a_model_that_is_not_known_is_refused(
    run: Run, output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_tiny_model(tmp_path / "gpt2", "gpt2")
    assert run(write(tmp_path / "in.parquet", TEXTS), *INT8, "--model", other) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: --quantize int8 is not for model ")
    assert error.endswith("the layers of GPT2Model are not known")
    assert hint == "hint: leave --quantize as it is: none"
    assert not output.exists()


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (["--verify", "5"], "--verify 5 and --quantize int8 exclude each other", "--min-agreement"),
        (["--dtype", "bfloat16"], "--quantize int8 and --dtype bfloat16 exclude each other", "--quantize"),
        (["--device", "cuda"], "--quantize int8 and --device cuda exclude each other", "--quantize"),
        (["--engine", "packed"], "--quantize int8 and --engine packed exclude each other", "--quantize"),
    ],
)
def test_flags_that_go_together_with_none_only(flags: list[str], message: str, hint: str) -> None:
    options = parse(["i", "o", "--quantize", "int8", *flags])
    assert options is not None
    with pytest.raises(UsageError, match=message) as refused:
        options.build_settings()
    assert hint in refused.value.hint
    plain = parse(["i", "o", *flags])
    assert plain is not None
    plain.build_settings()


@pytest.mark.parametrize(("text", "share"), [("0.9", 0.9), ("90%", 0.9), ("1", 1.0), ("99.5%", 0.995), ("0", 0.0)])
def test_agreement_is_a_share_or_a_percentage(text: str, share: float) -> None:
    options = parse(["i", "o", "--min-agreement", text])
    assert options is not None and options.min_agreement == pytest.approx(share)


@pytest.mark.parametrize("text", ["95", "101%", "-1", "nan", "much", "%"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--min-agreement: .* is neither a number from 0 to 1 nor a percentage"):
        parse(["i", "o", f"--min-agreement={text}"])


def test_a_dry_run_says_what_would_be_quantized(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.parquet", TEXTS)
    assert run(source, "--dry-run", "--quantize", "int8") == 0
    assert "quantize     int8" in capsys.readouterr().out
    assert run(source, "--dry-run") == 0
    assert "quantize" not in capsys.readouterr().out
