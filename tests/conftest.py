import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch is imported: idle OpenMP threads must sleep, not spin, on a machine shared with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# No test needs a network, and none may find one.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its tokenizer, as a folder of config.json, safetensors and tokenizer.json."""
    from tests.tiny import save_tiny_model  # imports torch, which most tests do without

    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture
def classify(
    tiny_model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> "CommandLine":
    """``python -m pipeline.classify`` in this process, with a tiny model unless told otherwise."""
    from pipeline.classify import main
    from tests.command_line import Said

    for name in [name for name in os.environ if name.startswith("PIPELINE_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object) -> Said:
        words = [str(argument) for argument in arguments]
        if "--model" not in words:
            words += ["--model", str(tiny_model_folder)]
        capsys.readouterr()
        exit_code = main(words)
        return Said(exit_code, *capsys.readouterr())

    return run
