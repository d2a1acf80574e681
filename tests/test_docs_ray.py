"""What the operator's guide to Ray shows is what Ray takes."""

import json
from pathlib import Path

import jsonschema
import ray.autoscaler
import yaml

DOCS = Path(__file__).parents[1] / "docs"


def test_the_cluster_of_the_guide_follows_the_schema_of_the_installed_ray() -> None:
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    cluster = yaml.safe_load((DOCS / "cluster.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(cluster, schema)
    assert cluster["head_node_type"] in cluster["available_node_types"]
