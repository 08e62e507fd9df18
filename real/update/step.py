"""The result of one optimizer step, taken, left out or refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """A number of a step that was not finite; all but the first lead to a refusal."""

    LOG_PROB = "their log-prob"
    LOG_PROBS = "the log-prob of every response token"
    LOSS = "the loss"
    GRADIENT = "the gradient"
    UPDATE = "the norm of the update"

    @property
    def notice(self) -> str:
        """Consequence and reason, to be followed by a number."""
        left_out = self is Fault.LOG_PROB
        done = "response tokens left out" if left_out else "optimizer steps refused"
        return f"{done} since {self} was not finite"


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduled optimizer step."""

    lr: float
    taken: bool = False
    """The optimizer moved; false where the mini-batch was empty or the step was refused."""
    fault: Fault | None = None
    """Reason why the step was refused; an update that is not finite was made before it was known.
    """
    update_norm: float = 0.0
    """L2 norm of the change of all parameters together; 0 for a step not taken."""
    loss: float = 0.0
    grad_norm: float = 0.0
    """Before clipping."""
    n_tokens: int = 0
    n_clipped: int = 0
    n_forward: int = 0
    n_inputs: int = 0
    """Tokens that went through the model, prompts included, see `Pass`."""
    n_left_out: int = 0
    """Response tokens outside of the loss: the engine's or the trainer's log-prob was not finite.
    One such token of the trainer takes its whole response out."""
    kl: float = 0.0
    """Mean estimated KL divergence from the reference policy; 0 without one."""

    @property
    def refused(self) -> bool:
        """A number that the step depends on was not finite."""
        return self.fault is not None
