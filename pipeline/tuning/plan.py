"""What a tuning is to do, as its command line says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try, and on how much.

    Attributes:
        held_out: share of each label's texts that judge and do not choose.
        prompt_rows: most texts of each part that prompts are tried on.
        seed: of everything drawn by chance.
        with_prompts: whether prompts are tried.
        with_head: whether a head is fitted.
        with_examples: whether labelled texts may become part of a prompt, and so of the task file.
    """

    held_out: float = 0.3
    prompt_rows: int = 200
    seed: int = 0
    with_prompts: bool = True
    with_head: bool = True
    with_examples: bool = True
