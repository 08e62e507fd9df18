"""Seeds for engines that draw with a generator of their own for every request."""

from __future__ import annotations

import torch

_SEEDS = 2**62


def request_seeds(generator: torch.Generator, n_prompts: int, n: int) -> list[int]:
    """One seed per prompt, `n` apart.

    vLLM draws the i-th response to a prompt with `seed + i`, so prompts whose seeds are closer
    than `n` would share random numbers, and their votes would be correlated.

    Args:
        generator: advanced by one draw whatever is asked for.
        n_prompts: prompts.
        n: responses a prompt.
    """
    first = torch.randint(_SEEDS, (1,), generator=generator, device=generator.device)
    return [int(first) + prompt * n for prompt in range(n_prompts)]
