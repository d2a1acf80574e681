"""Finding and loading a model: the embedded one, a local folder or GGUF file, or a model hub name.

Only safetensors and GGUF weights are read; pickled weights and code that comes with a model run only with
``trust_remote_code``.
"""

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from accelerate import PartialState
from huggingface_hub.errors import EntryNotFoundError

from pipeline.engine.embedded import embedded_model
from pipeline.engine.half import slowdown
from pipeline.engine.model import Model
from pipeline.errors import ModelError, PipelineError, UsageError

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# How the names of model classes with a head for classes end.
CLASSIFIER = "ForSequenceClassification"
OTHER_CLASSIFIER = "use a classifier of two or more classes, or a causal language model"
WAYS_OUT = (
    "give --model a folder with config.json and safetensors, a .gguf file, a name the hub knows (needs a network), "
    "or embedded"
)


def load_model(
    name: str = "embedded",
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> Model:
    """Load a causal language model, or one with a head for classes, and its tokenizer for inference.

    Args:
        name: ``embedded``, a folder, a GGUF file, or a model hub name.
        revision: branch, tag or commit on the hub.
        device: ``auto`` (the best that accelerate finds), ``cpu``, ``cuda`` or ``mps``.
        dtype: ``auto`` (float32 on CPU, bfloat16 or float16 on accelerators), ``float32``, ``bfloat16``, ``float16``.
        trust_remote_code: also run code that comes with the model, and read pickled weights.

    Raises:
        ModelError: not found, not loadable, or neither a causal language model nor a classifier with a fast tokenizer.
        UsageError: this machine has no such device.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    target = _device(device)
    weights_dtype = _dtype(dtype, target)
    if target.type == "cpu" and weights_dtype != torch.float32 and (times := slowdown(weights_dtype)) > 1:
        log.warning("--dtype %s: products take %.1f times as long as in float32 on this CPU", dtype, times)
    try:
        source = _source(name, revision)
        # the GGUF reader draws a bar of its own
        with contextlib.redirect_stderr(io.StringIO()) if "gguf_file" in source else contextlib.nullcontext():
            tokenizer = transformers.AutoTokenizer.from_pretrained(**source, trust_remote_code=trust_remote_code)
            lm, loading = _auto_class(source, trust_remote_code).from_pretrained(
                **source,
                output_loading_info=True,
                dtype=weights_dtype,
                device_map={"": target},
                trust_remote_code=trust_remote_code,
                use_safetensors=None if trust_remote_code else True,
            )
    except PipelineError:
        raise
    except Exception as error:  # damaged files make the libraries below raise whatever they like
        reason = " ".join(str(error).split())
        raise ModelError(f"cannot load model {name!r}: {reason[:300]}", WAYS_OUT) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"model {name!r} has no fast tokenizer (tokenizer.json)", WAYS_OUT)
    is_classifier = type(lm).__name__.endswith(CLASSIFIER)
    if missing := sorted(loading["missing_keys"]):  # they were filled with random numbers
        hint = OTHER_CLASSIFIER if is_classifier else WAYS_OUT
        raise ModelError(f"model {name!r} has no weights for {', '.join(missing)[:300]}", hint)
    if not is_classifier:
        return Model(lm.eval(), tokenizer, target, weights_dtype, name)
    return Model(
        lm.eval(),
        tokenizer,
        target,
        weights_dtype,
        name,
        class_names=_class_names(lm.config, name),
        multi_label=lm.config.problem_type == "multi_label_classification",
    )


def _auto_class(source: dict[str, Any], trust_remote_code: bool) -> Any:
    """The kind of model that a checkpoint says it holds."""
    if "gguf_file" in source:  # the format holds no heads for classes
        return transformers.AutoModelForCausalLM
    config = transformers.AutoConfig.from_pretrained(**source, trust_remote_code=trust_remote_code)
    is_classifier = (getattr(config, "architectures", None) or [""])[0].endswith(CLASSIFIER)
    return transformers.AutoModelForSequenceClassification if is_classifier else transformers.AutoModelForCausalLM


def _class_names(config: Any, name: str) -> tuple[str, ...]:
    """Names of a classifier's classes, in the order of its logits."""
    if config.problem_type == "regression" or config.num_labels < 2:
        outputs = "one number" if config.num_labels == 1 else f"{config.num_labels} numbers"
        raise ModelError(f"model {name!r} gives {outputs} for a text, not classes to choose from", OTHER_CLASSIFIER)
    names = tuple(str(config.id2label.get(number)) for number in range(config.num_labels))
    for place, twin in enumerate(names):
        if twin in names[:place]:
            raise ModelError(
                f"model {name!r} has two classes with the name {twin!r}", "give its classes names in its config.json"
            )
    return names


def _source(name: str, revision: str | None) -> dict[str, Any]:
    """What ``from_pretrained`` is to read."""
    if name == "embedded":
        return {"pretrained_model_name_or_path": str(embedded_model())}
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no model file {name!r}", WAYS_OUT)
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model folder {name!r} has no config.json", WAYS_OUT)
        return {"pretrained_model_name_or_path": name}
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"there is no model folder {name!r}", WAYS_OUT)
    _check_hub(name, revision)
    return {"pretrained_model_name_or_path": name, "revision": revision or "main"}


def _check_hub(name: str, revision: str | None) -> None:
    """Ask once for the smallest file: loading would ask a hub that is out of reach for one file after the other."""
    huggingface_hub.utils.logging.set_verbosity_error()
    try:
        huggingface_hub.hf_hub_download(name, "config.json", revision=revision)
    except (EntryNotFoundError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"cannot get model {name!r} from the hub: {reason[:300]}", WAYS_OUT) from error


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device(PartialState().device)
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[device]:
        found = ", ".join(name for name, there in available.items() if there)
        raise UsageError(f"--device {device}: this machine (or this build of torch) has none; found: {found}")
    return torch.device(device)


def _dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype != "auto":
        return DTYPES[dtype]
    if device.type == "cpu":
        return torch.float32
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.bfloat16
    return torch.float16
