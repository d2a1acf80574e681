import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: idle OpenMP threads must sleep, not spin, on a machine shared with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A tiny model is faster on one thread, and tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test needs a network, and none may find one.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

# A machine that is busy with other work is slow, and no fault of a test.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("local", patient)
settings.register_profile("ci", patient, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its tokenizer, as a folder of config.json, safetensors and tokenizer.json."""
    from tests.tiny import save_tiny_model  # imports torch, which most tests do without

    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny-llama")
