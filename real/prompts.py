"""The problem set Q as the model sees it: prompts as tokens, overlong ones left out and counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from lab.errors import UserError
from real.config import TrainConfig
from real.policy import Policy
from real.problems import Problem


@dataclass(frozen=True, slots=True)
class PromptSet:
    """N problems with their prompts."""

    name: str
    """What was trained on, for readers."""
    problems: list[Problem]
    tokens: list[list[int]]
    """N prompts as token ids."""
    left_out: list[str]
    """Ids of problems whose prompts are too long."""

    def __len__(self) -> int:
        """Number of problems N."""
        return len(self.problems)

    @property
    def truths(self) -> list[str | None]:
        """(N,) reference answers; None where there is none."""
        return [problem.answer for problem in self.problems]


def build_prompts(found: list[Problem], config: TrainConfig, policy: Policy) -> PromptSet:
    """Encode problems; those that do not fit the limits are left out.

    Args:
        found: from `real.sources.read_problems`.
        config: settled settings.
        policy: whose tokenizer and positions count.

    Raises:
        UserError: no prompt fits, or the tokenizer makes nothing of one.
    """
    limit = _longest_prompt(config, policy)
    problems: list[Problem] = []
    tokens: list[list[int]] = []
    left_out: list[str] = []
    for problem in found:
        ids = policy.encode(problem.prompt + (config.prompt_suffix or ""))
        if not ids:
            raise UserError(f"problem {problem.id!r}: the tokenizer makes no tokens of its prompt")
        if len(ids) > limit:
            left_out.append(problem.id)
            continue
        problems.append(problem)
        tokens.append(ids)
    if not problems:
        raise UserError(
            f"all {len(left_out)} prompts are longer than {limit} tokens; "
            "raise max_prompt_tokens or take a model with more positions"
        )
    return PromptSet(_name(config), problems, tokens, left_out)


def as_tensor(prompt: list[int], device: torch.device) -> torch.Tensor:
    """(L,) token ids."""
    return torch.tensor(prompt, dtype=torch.long, device=device)


def _longest_prompt(config: TrainConfig, policy: Policy) -> int:
    positions = policy.max_positions
    if positions is None:
        return config.max_prompt_tokens
    room = positions - (config.max_response_tokens or 0)
    if room < 1:
        raise UserError(
            f"max_response_tokens = {config.max_response_tokens}: the model has {positions} "
            "positions for prompt and response together; ask for shorter responses"
        )
    return min(config.max_prompt_tokens, room)


def _name(config: TrainConfig) -> str:
    task = "tiny" if config.problems is None else Path(config.problems).stem
    return task if config.model is None else f"{task} with {Path(config.model).name}"
