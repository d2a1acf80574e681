"""The flags that say which model, for commands beside ``classify``; each has the environment variable it has there."""

from typing import Annotated, Literal

import typer

from pipeline.command.flags import column_names, count, flag

TaskFile = Annotated[
    str | None, flag("task", "Task", "Task file: labels, prompts, text columns.", metavar="FILE.toml|builtin:NAME")
]
TextColumns = Annotated[
    list[str] | None,
    flag("text-column", "Task", "Column that holds the text; repeat it.", metavar="NAME", callback=column_names),
]
ModelName = Annotated[
    str, flag("model", "Model", "A folder, a .gguf file, a model hub name, or embedded.", metavar="MODEL")
]
Revision = Annotated[
    str | None, flag("revision", "Model", "Branch, tag or commit of the model on the hub.", metavar="REVISION")
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], flag("device", "Model", "Where the model runs.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"], flag("dtype", "Model", "Type of the weights.", metavar="TYPE")
]
MaxTokens = Annotated[
    int | None, flag("max-tokens", "Model", "Most tokens of a whole prompt.", metavar="N", parser=count)
]
TrustRemoteCode = Annotated[
    bool, flag("trust-remote-code", "Model", "Run code that comes with the model, and read pickled weights.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn by chance.", min=0, max=2**32 - 1)]
