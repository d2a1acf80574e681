import json
from typing import Any

import pytest

from pipeline.build import build_stage
from pipeline.engine.load import load_model
from pipeline.settings import Settings
from pipeline.task_file import builtin_task
from tests.tiny import save_tiny_model, tiny_model, tiny_tokenizer


def fingerprint_of(family: str, **changes: Any) -> str:
    model = tiny_model(family, tokenizer=tiny_tokenizer("chatml"), **changes)
    return build_stage(builtin_task(), model, Settings()).fingerprint


def test_the_same_model_and_task_have_the_same_fingerprint():
    assert fingerprint_of("llama") == fingerprint_of("llama")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
        ("granite", {"logits_scaling": 7.0}),
        ("mistral", {"sliding_window": 5}),
        ("gemma2", {"final_logit_softcapping": 1.0}),
    ],
)
def test_a_configuration_that_changes_scores_changes_the_fingerprint_though_the_weights_are_the_same(family, changes):
    """With --cache, a model whose config.json was corrected got the labels of the wrong one."""
    assert fingerprint_of(family, **changes) != fingerprint_of(family)


def test_code_that_comes_with_a_model_decides_its_scores_too(tmp_path, monkeypatch):
    """With --cache, a model whose own code was corrected got the labels of the wrong one."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = save_tiny_model(tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    digests = set()
    for correction in ("", "", "# corrected\n"):
        imports = "from transformers import LlamaForCausalLM\n"
        code = "class OwnForCausalLM(LlamaForCausalLM):\n    pass\n"
        (folder / "modeling_own.py").write_text(imports + correction + code)
        model = load_model(str(folder), trust_remote_code=True)
        assert type(model.lm).__name__ == "OwnForCausalLM"
        digests.add(model.digest)
    assert len(digests) == 2
