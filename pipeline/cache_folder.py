"""The folder where this program keeps what it can make again: the converted model, unfinished uploads."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``parquet-classify`` in the user's cache folder, which ``XDG_CACHE_HOME`` moves; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "parquet-classify"
