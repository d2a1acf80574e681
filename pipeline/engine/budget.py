"""How many tokens one pass takes, where the user does not say."""

import torch

from pipeline.engine.model import Model

# On a CPU anything from 256 to 2,048 tokens takes the same time per token, within 5 % (docs/log.md): the products are
# long enough, and a pass's activations are small next to the weights. Small passes keep memory low and workers busy.
CPU_TOKENS = 512
# What a large accelerator is given; it has not been measured on one.
ACCELERATOR_TOKENS = 16384
MIN_ACCELERATOR_TOKENS = 1024
# Passes that meet each other, and what the allocator cannot use, take the rest.
MEMORY_SHARE = 0.5


def default_batch_tokens(model: Model, max_tokens: int) -> int:
    """Padded tokens of one pass for a model on its device.

    Args:
        model: the loaded model.
        max_tokens: of a whole prompt; attention masks grow with it.
    """
    if model.device.type == "cpu":
        return CPU_TOKENS
    if model.device.type != "cuda":
        return ACCELERATOR_TOKENS
    free, _ = torch.cuda.mem_get_info(model.device)
    return tokens_that_fit(free, bytes_per_token(model, max_tokens))


def bytes_per_token(model: Model, max_tokens: int) -> int:
    """Memory that one token of a pass takes, roughly: states and their copies, the MLP's, and its rows of the masks."""
    config = model.lm.config.get_text_config(decoder=True)
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    states = (8 * hidden + 4 * inner) * model.dtype.itemsize
    return states + 2 * max_tokens


def tokens_that_fit(free_bytes: int, per_token: int) -> int:
    """Tokens of a pass for so much free memory, within sensible limits; a pass that fails all the same is split."""
    return max(MIN_ACCELERATOR_TOKENS, min(ACCELERATOR_TOKENS, int(free_bytes * MEMORY_SHARE) // per_token))
