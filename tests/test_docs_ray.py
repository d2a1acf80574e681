"""What the operator's guide to Ray shows is what Ray takes."""

import json
from pathlib import Path

import jsonschema
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.autoscaler
import yaml

from pipeline.classify import main
from tests.hard_files import ticket_texts

DOCS = Path(__file__).parents[1] / "docs"


def test_the_cluster_of_the_guide_follows_the_schema_of_the_installed_ray() -> None:
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    cluster = yaml.safe_load((DOCS / "cluster.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(cluster, schema)
    assert cluster["head_node_type"] in cluster["available_node_types"]


def test_texts_labelled_once_and_joined_are_the_rows_labelled(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [*ticket_texts(12), None, *ticket_texts(7), " "]
    pq.write_table(pa.table({"id": range(len(texts)), "body": texts}), "in.parquet", row_group_size=5)
    guide = (DOCS / "ray.md").read_text(encoding="utf-8")
    before, command, after = (
        guide.partition("```python\n")[2].partition("```")[0].partition("# python -m pipeline.classify")
    )
    arguments, code = after.split("\n", 1)
    assert arguments.endswith("--ray auto")
    flags = ["--model", str(tiny_model_folder), "--progress", "none"]
    names: dict[str, object] = {}
    exec(before, names)
    assert main([*arguments.removesuffix("--ray auto").split(), *flags]) == 0
    exec(code, names)
    assert main(["in.parquet", "whole.parquet", "--text-column", "body", *flags]) == 0
    assert command
    assert pl.read_parquet("out.parquet").equals(pl.read_parquet("whole.parquet"))
