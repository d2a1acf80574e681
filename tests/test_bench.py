"""The benchmark's own arithmetic, on a tiny model; no clock is judged here."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.bench import around, ceiling, measure
from pipeline.bench.__main__ import main
from pipeline.bench.bound import Bound, bind
from pipeline.bench.ceiling import flop_of_last_rest, flop_per_token, matmul_flops
from pipeline.bench.label_counts import build_label_paths, fastest_engine, ratio_of_most_to_fewest
from pipeline.bench.memory import main as measure_memory
from pipeline.bench.paths import Turn, build_paths, figures
from pipeline.bench.table import path_lines
from pipeline.bench.time_shares import time_shares
from pipeline.bench.turns import Spread, deal, run_in_turns, spread
from pipeline.bench.ways import WAYS, choose_ways
from pipeline.bench.workload import Workload, load_workload, many_labels, seed_task, seed_tickets
from pipeline.engine.load import load_model
from pipeline.errors import UsageError
from tests.tiny import save_tiny_model, tiny_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ceilings are measured for a moment only, and torch keeps its threads."""
    for module in (around, ceiling):
        monkeypatch.setattr(module, "SECONDS", 0.01)
    monkeypatch.setattr(ceiling, "COPIED_BYTES", 1 << 20)
    monkeypatch.setattr(ceiling, "N_TOKENS", 32)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def bound_seed(tiny_model_folder: Path, n_rows: int) -> Bound:
    tickets = [ticket[:120] for ticket in seed_tickets(n_rows)]
    return bind(Workload("seed", tickets, None, seed_task()), load_model(str(tiny_model_folder)))


def test_seed_tickets_are_long_tailed_and_the_same_every_time() -> None:
    tickets = seed_tickets(600)
    n_words = np.array([len(ticket.split()) for ticket in tickets])
    assert tickets == seed_tickets(600)
    assert n_words.min() == 12
    assert n_words.max() == 400
    assert 55 <= np.median(n_words) <= 66
    assert 230 <= np.quantile(n_words, 0.95) <= 290


def test_mixed_and_short_texts_have_truths_and_are_asked_for_with_the_built_in_task() -> None:
    tokenizer = tiny_tokenizer()
    for name in ("mixed", "short"):
        workload = load_workload(name, 30, tokenizer)
        assert workload.truths is not None
        assert len(workload.texts) == len(workload.truths) == 30
        assert workload.task.calibration == "contextual"
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in workload.texts]
    assert all(10 <= length <= 20 for length in lengths)


def test_without_a_checkout_the_message_says_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sample_data.workload", None)  # as if it were not there
    with pytest.raises(UsageError, match="which an installed package lacks") as caught:
        load_workload("mixed", 20, None)
    assert "--workload seed" in caught.value.hint
    assert load_workload("seed", 20, None).truths is None


def test_rows_are_dealt_into_groups_of_like_lengths_each_once() -> None:
    lengths = np.random.default_rng(0).lognormal(4, 1, 600).astype(np.int64)
    groups = deal(lengths, 6)
    assert sorted(np.concatenate(groups)) == list(range(600))
    assert [len(group) for group in groups] == [100] * 6
    for group in groups:
        assert list(group) == sorted(group), "rows arrive in their order"
        for share in (0.1, 0.5, 0.9):
            assert np.quantile(lengths[group], share) == pytest.approx(np.quantile(lengths, share), rel=0.1)
    assert [len(group) for group in deal(np.arange(7), 3)] == [3, 2, 2]


def test_every_path_does_the_job_of_a_turn_before_the_next_turn_begins() -> None:
    seen: list[str] = []

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def warm_up(self) -> None:
            seen.append(f"{self.name} warm")

        def run_turn(self, turn: int) -> None:
            seen.append(f"{self.name}{turn}")

    run_in_turns([Noted("a"), Noted("b")], 2, lambda: seen.append("ceiling"), lambda line: None)
    assert seen == ["a warm", "b warm", "ceiling", "a0", "b0", "ceiling", "a1", "b1"]


def test_a_ratio_is_formed_within_each_turn_and_the_median_of_ratios_is_told(tiny_model_folder: Path) -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    slow, fast = build_paths([WAYS[0], WAYS[5]], bound_seed(tiny_model_folder, 20), 2, 1024, print)
    for path in (slow, fast):
        for turn in range(2):
            path.run_turn(turn)
    # a minute in which the machine is ten times slower hits both
    slow.turns = [Turn(10, 1.0, 100, 0, 2e9), Turn(10, 10.0, 100, 0, 2e9)]
    fast.turns = [Turn(10, 0.5, 80, 20, 1e9), Turn(10, 2.5, 80, 20, 1e9)]
    told = figures(fast, slow, [4e9, 0.5e9], peak_mib=7.0)
    assert told["speedup"] == 3.0
    assert told["speedup_spread"] == [2.0, 4.0]
    assert told["items_per_s"] == 12.0
    assert told["ceiling_share"] == pytest.approx((0.5 + 0.8) / 2)
    assert told["computed_tokens"] == 160
    assert told["computed_tokens_per_row"] == 8.0
    assert told["padding_share"] == 0.25
    assert told["peak_mib"] == 7.0
    assert told["agreement"] == 1.0


def test_every_path_scores_every_row_and_counts_its_tokens(tiny_model_folder: Path) -> None:
    bound = bound_seed(tiny_model_folder, 70)
    paths = build_paths(WAYS, bound, 2, 2000, print)
    assert [path.way for path in paths] == [*WAYS]
    for path in paths:
        path.warm_up()
        for turn in range(2):
            path.run_turn(turn)
    computed = {path.way.name: sum(turn.computed_tokens for turn in path.turns) for path in paths}
    for path in paths:
        largest = np.abs(path.raw - paths[0].raw).max()
        assert 1e-3 < largest < 1 if path.way.quantized else largest < 1e-3, path.way.name
        assert [turn.rows for turn in path.turns] == [35, 35]
    assert computed["one at a time"] == bound.n_tokens.sum()
    own = int(bound.behind_prefix["n_tokens"].sum())
    assert computed["packed + shared prefix"] == computed["fused + shared prefix"] == own
    assert computed["one at a time"] < computed["padded buckets"]
    assert computed["batches of 32, sorted"] < computed["batches of 32, arriving order"]
    flop = {path.way.name: sum(turn.flop for turn in path.turns) for path in paths}
    # the last layer works only on the tokens that are read
    saved = (own - 70) * flop_of_last_rest(bound.model)
    assert flop["packed + shared prefix"] - flop["fused + shared prefix"] == pytest.approx(saved)


def test_tokens_of_labels_count_as_each_engine_feeds_them(tiny_model_folder: Path) -> None:
    """Single reads a prompt once for each chain of the tree, padded feeds the chains, packed each node once."""
    bound = bind(load_workload("short", 20, tiny_tokenizer()), load_model(str(tiny_model_folder)))
    labels = dict.fromkeys(("bank transfer", "bank transfer too late", "bank card", "refund"), "")
    task = bound.workload.task
    task = replace(task, labels=tuple(labels.items()), answers=(), scoring="sequence")
    bound = bind(Workload("short", bound.workload.texts, None, task), bound.model)
    tree = bound.scorer.readout
    chains = sum(map(len, tree.paths))
    assert tree.n_nodes < chains
    single, _, _, padded, _, packed, *_ = build_paths(WAYS, bound, 1, 1024, print)
    for path in (single, padded, packed):
        path.run_turn(0)
    assert single.turns[0].computed_tokens == bound.n_tokens.sum() * len(tree.paths) + 20 * chains
    assert padded.turns[0].computed_tokens - padded.turns[0].padding == bound.n_tokens.sum() + 20 * chains
    assert packed.turns[0].computed_tokens == bound.behind_prefix["n_tokens"].sum() + 20 * tree.n_nodes


def test_whole_prompts_are_the_prefix_and_what_stands_behind_it(tiny_model_folder: Path) -> None:
    bound = bound_seed(tiny_model_folder, 5)
    prefix = [*bound.encoder.prefix_ids]
    for whole, own in zip(bound.whole["token_ids"], bound.behind_prefix["token_ids"], strict=True):
        assert whole.to_list() == prefix + own.to_list()
    assert bound.whole["n_shared"].to_list() == [0] * 5


def test_beginnings_that_rows_share_are_counted(tiny_model_folder: Path) -> None:
    model = load_model(str(tiny_model_folder))
    twice = bind(Workload("seed", ["refund please", "refund please"], None, seed_task()), model)
    assert twice.shared_share() == 0.5
    assert bound_seed(tiny_model_folder, 5).shared_share() < 0.1


def test_paths_are_chosen_by_name_or_pattern_and_the_reference_stays() -> None:
    assert [way.name for way in choose_ways(["packed*", "fused + shared prefix"])] == [
        "one at a time",
        "packed + shared prefix",
        "fused + shared prefix",
    ]
    with pytest.raises(UsageError, match="'fast': there is no such path"):
        choose_ways(["fast"])


def test_a_path_that_does_not_fit_the_model_is_told_and_left_out() -> None:
    model = tiny_model("gemma2", tokenizer=tiny_tokenizer())
    told: list[str] = []
    bound = bind(Workload("seed", ["refund please"] * 4, None, seed_task()), model)
    paths = build_paths(WAYS, bound, 2, 1024, told.append)
    assert "fused + shared prefix" not in [path.way.name for path in paths]
    assert told == [
        f"left out: {name}: the layers of Gemma2Model are not known"
        for name in ("fused + shared prefix", "fused + shared prefix, int8")
    ]


def test_the_ceiling_counts_the_layers_that_every_token_passes() -> None:
    model = tiny_model("llama")
    per_layer = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32
    assert flop_per_token(model) == 3 * 2 * per_layer
    assert flop_of_last_rest(model) == 2 * (32 * 32 + 3 * 48 * 32)
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        assert matmul_flops(model) > 0
        assert torch.get_num_threads() == n_threads


@pytest.mark.parametrize(
    ("family", "fits"),
    [("gpt2", {"padded buckets", "packed + shared prefix"}), ("bloom", {"padded buckets"})],
)
def test_every_model_is_measured_as_far_as_engines_run_it(
    family: str, fits: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a traceback: GPT-2's linear layers are none of torch's."""
    model = save_tiny_model(tmp_path / "model", family)
    flags = ["--rows", "20", "--turns", "1", "--label-rows", "0", "--no-memory", "--workload", "seed"]
    assert main([*flags, "--model", str(model), "--paths", "padded buckets,packed*,fused*"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    paths = {path["path"]: path for path in summary["workloads"]["seed"]["paths"]}
    assert paths.keys() == {"one at a time"} | fits
    assert summary["ceilings"]["matmul_gflops"] > 0
    assert all(path["ceiling_share"] > 0 and path["agreement"] == 1.0 for path in paths.values())
    assert (
        summary["workloads"]["seed"]["time_shares_of"]
        == max(paths.values(), key=lambda path: ("shared" in path["path"], path["items_per_s"]))["path"]
    )


def test_a_path_that_a_model_fails_in_is_told_and_left_out() -> None:
    """Mamba ended in a traceback: whether a padded pass works shows only in one."""
    told: list[str] = []
    bound = bind(Workload("seed", ["refund"] * 2, None, seed_task()), tiny_model("mamba", tokenizer=tiny_tokenizer()))
    (path,) = build_paths([WAYS[0], WAYS[3]], bound, 1, 1024, told.append)
    assert path.way is WAYS[0]
    assert told[0].startswith("left out: padded buckets: IndexError")


@pytest.mark.parametrize(
    ("family", "engine"), [("llama", "fused"), ("gpt2", "packed"), ("bloom", "padded"), ("mamba", "single")]
)
def test_label_counts_are_measured_on_the_fastest_engine_that_runs(family: str, engine: str) -> None:
    """With Bloom it was a traceback behind everything else."""
    model = tiny_model(family, tokenizer=tiny_tokenizer())
    bound = bind(Workload("seed", ["refund please"] * 2, None, seed_task()), model)
    fastest = fastest_engine(bound.model, bound.encoder, bound.scorer.readout, bound.behind_prefix)
    assert fastest.name == engine


def test_gpt2_has_the_linear_layers_that_a_llama_has() -> None:
    assert flop_per_token(tiny_model("gpt2")) == 3 * 2 * (32 * 3 * 32 + 32 * 32 + 2 * 32 * 128)


def test_rows_without_finite_scores_have_no_label_to_agree_on(tiny_model_folder: Path) -> None:
    """In float16 all scores of a path were NaN, and all labels were told to agree; then JSON knew no such number."""
    slow, fast = build_paths([WAYS[0], WAYS[5]], bound_seed(tiny_model_folder, 20), 2, 1024, print)
    for path in (slow, fast):
        for turn in range(2):
            path.run_turn(turn)
    fast.raw[:5] = np.nan
    told = figures(fast, slow, [1e9, 1e9], peak_mib=None)
    assert (told["agreement"], told["not_finite"]) == (0.75, 5)
    assert told["largest_difference"] < 1e-3
    fast.raw[:] = np.inf
    told = figures(fast, slow, [1e9, 1e9], peak_mib=None)
    assert (told["agreement"], told["not_finite"], told["largest_difference"]) == (0.0, 20, None)
    (_, line) = path_lines([told])
    assert line.endswith("20 rows without finite scores")


def test_what_is_profiled_are_the_tokens_that_the_path_reads(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that does not share the prefix was profiled without it."""
    bound = bound_seed(tiny_model_folder, 20)
    for way, frame in ((WAYS[3], bound.whole), (WAYS[5], bound.behind_prefix)):
        (path,) = build_paths([way], bound, 1, 64, print)
        lengths: list[int] = []
        score = path.engine.score
        monkeypatch.setattr(
            path.engine, "score", lambda bucket, score=score, to=lengths: to.extend(bucket.n_tokens) or score(bucket)
        )
        time_shares(path, 1.0, around.Around(1.0, 1.0, 1.0))
        assert max(lengths) == frame["n_tokens"].max(), way.name


def test_it_prints_tables_and_one_line_of_json(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "peak_of_path", lambda arguments: 12.0)
    arguments = ["--rows", "20", "--turns", "2", "--label-rows", "4", "--model", str(tiny_model_folder)]
    files = ["--json", str(tmp_path / "figures.json"), "--plot", str(tmp_path / "picture.svg")]
    assert main([*arguments, *files, "--workload", "seed,short"]) == 0
    lines = capsys.readouterr().out.splitlines()
    summary = json.loads(lines[-1])
    assert json.loads((tmp_path / "figures.json").read_text()) == summary
    assert "<svg" in (tmp_path / "picture.svg").read_text()
    assert summary["headline"] == "seed"
    assert summary["ceilings"]["matmul_gflops"] > 0
    assert summary["ceilings"]["copy_gb_per_s"] > 0
    assert [*summary["workloads"]] == ["seed", "short"]
    for workload in summary["workloads"].values():
        paths = {path["path"]: path for path in workload["paths"]}
        assert [*paths] == [way.name for way in WAYS]
        for name, path in paths.items():
            exact = not name.endswith("int8")
            assert path["agreement"] == 1.0 if exact else path["agreement"] > 0.5, name
            assert path["largest_difference"] < (1e-3 if exact else 1), name
            assert path["items_per_s_spread"][0] <= path["items_per_s"] <= path["items_per_s_spread"][1], name
            assert path["peak_mib"] == 12.0
            assert any(line.startswith(name) for line in lines)
        assert paths["one at a time"]["speedup"] == 1.0
        assert paths["packed + shared prefix"]["padding_share"] == 0.0
        assert 0 < paths["padded buckets"]["padding_share"] < paths["batches of 32, arriving order"]["padding_share"]
        assert sum(workload["decisions"].values()) == pytest.approx(1)
        assert sum(workload["time_shares"].values()) == pytest.approx(1)
        for rate in ("tokenizer_texts_per_s", "tokenizer_tokens_per_s", "parquet_rows_per_s", "ceiling_gflops"):
            assert workload[rate] > 0, rate
    assert summary["workloads"]["seed"]["accuracy"] is None
    assert 0 <= summary["workloads"]["short"]["accuracy"] <= 1
    assert summary["label_rows"] == 4
    counts = summary["label_counts"]
    assert [(row["labels"], row["scoring"]) for row in counts] == [
        (n_labels, scoring) for n_labels in (3, 10, 77) for scoring in ("constrained", "sequence", "head")
    ]
    assert {*summary["most_to_fewest_labels"]} == {"constrained", "sequence", "head"}
    assert any(line.startswith("items/s with 77 labels over items/s with 3: constrained ") for line in lines)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--workload", "moxed"], 2, "error: --workload 'moxed': there is no such workload"),
        (["--paths", "fast"], 2, "error: --paths 'fast': there is no such path"),
        (["--plot", "picture.gif"], 2, "error: --plot 'picture.gif': must end in .png or .svg"),
        (["--json", "nowhere/figures.json"], 73, "error: --json 'nowhere/figures.json': there is no such folder"),
        (["--json", "."], 73, "error: --json '.': that is a folder"),
        (["--plot", "."], 73, "error: --plot '.': that is a folder"),
    ],
)
def test_a_wrong_flag_is_one_line_before_anything_is_measured(
    flags: list[str], code: int, message: str, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tiny_model_folder), *flags]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert not captured.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rows", "5"], "--rows 5: at least 20"),
        (["--rows", "20", "--turns", "11"], "--turns 11: from 1 to half of --rows 20"),
        (["--label-rows", "-5"], "--label-rows -5: at least 0"),
        (["--max-batch-tokens", "0"], "--max-batch-tokens 0: at least 1"),
        (["--dtype", "foo"], "argument --dtype: invalid choice: 'foo'"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_a_number_or_flag_that_cannot_be_is_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A negative ``--label-rows`` was a traceback when all the rest was measured, ``--max-batch-tokens 0`` ignored."""
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {message}")
    assert hint == "hint: see python -m pipeline.bench --help"


def test_figures_are_told_though_their_file_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has measured for an hour must not lose it to a folder that has gone meanwhile."""
    monkeypatch.setattr(measure, "measure", lambda options: gone.rmdir() or {"rows": 600})
    (gone := tmp_path / "gone").mkdir()
    assert main(["--json", str(gone / "figures.json")]) == 73
    captured = capsys.readouterr()
    assert captured.out == '{"rows": 600}\n'
    assert captured.err.startswith("error: --json")


def test_without_matplotlib_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "pipeline.bench.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--plot", "picture.png"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: --plot needs 'matplotlib', which is not installed"
    assert "[report]" in hint


def test_a_model_that_is_not_there_is_one_line_and_the_documented_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path / "nothing")]) == 69
    assert capsys.readouterr().err.startswith("error: there is no model folder")


def test_the_peak_of_a_path_is_measured_after_loading(
    tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a process of its own, but within this one."""
    flags = {"workload": "seed", "path": "packed + shared prefix", "model": str(tiny_model_folder), "device": "cpu"}
    sizes = {"dtype": "float32", "rows": 20, "max-batch-tokens": 512}
    assert measure_memory([f"--{flag}={value}" for flag, value in (flags | sizes).items()]) == 0
    assert float(capsys.readouterr().out) > 50


def test_constrained_scoring_feeds_few_label_tokens_even_for_many_labels(tiny_model_folder: Path) -> None:
    paths = build_label_paths(load_model(str(tiny_model_folder)), 20, 2, max_batch_tokens=1024)
    for path in paths:
        assert sum(map(len, path.frames)) == 20
    fed = {(path.n_labels, path.name): path.n_nodes for path in paths}
    for n_labels in (3, 10, 77):
        assert fed[n_labels, "head"] == 0
        assert fed[n_labels, "constrained"] < fed[n_labels, "sequence"]
    assert fed[10, "sequence"] < fed[77, "sequence"]
    for path in paths:
        path.seconds = [1.0, 2.0] if path.n_labels == 3 else [4.0, 4.0]
    assert ratio_of_most_to_fewest(paths) == {"constrained": 0.375, "sequence": 0.375, "head": 0.375}


def test_many_labels_are_of_several_words_and_begin_alike() -> None:
    labels = many_labels(77)
    assert len(set(labels)) == 77
    assert many_labels(3) == ("bank transfer charged twice", "card payment limit", "refund pending")
    assert len({label.split()[0] for label in labels}) < 10


def test_the_copied_table_holds_what_the_workload_has() -> None:
    workload = Workload("mixed", ["one", "two"], ["billing", "account"], seed_task())
    assert around.workload_table(workload).to_pydict() == {
        "id": [0, 1],
        "text": ["one", "two"],
        "truth": ["billing", "account"],
    }
