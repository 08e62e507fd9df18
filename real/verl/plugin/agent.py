"""One response of one problem, sampled with a seed of its own."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

from lab.errors import UserError
from real.settings.seeds import Stream, request_seed
from real.verl.plugin.settings import AGENT, STREAM
from real.verl.plugin.trainer import GuardTrainer


@register(AGENT)
class SeededAgentLoop(SingleTurnAgentLoop):
    """verl's single turn, seeded by run, step, problem and session; so a resumed run votes alike.

    Raises:
        UserError: the trainer is not that of the guard.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take verl's arguments."""
        super().__init__(*args, **kwargs)
        mode = self.config.trainer.v1.trainer_mode
        if not issubclass(get_trainer_cls(mode), GuardTrainer):
            raise UserError(
                f"trainer.v1.trainer_mode = {mode}: the guard needs all votes of one version of "
                "the weights, which asynchronous modes mix; set ttrl_guard"
            )

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Sample; a vote has no reward of its own, so that none is computed."""
        place = (int(kwargs[name]) for name in ("global_steps", "index", "session_id"))
        stream = Stream(kwargs.get(STREAM, Stream.EVALUATION))
        seed = request_seed(int(self.config.get("guard", {}).get("seed", 0)), stream, *place)
        params = {**sampling_params, "seed": seed}
        output = await super().run(params, **kwargs)  # pyright: ignore[reportAbstractUsage]
        if stream == Stream.VOTES:
            output.reward_score = 0.0
        return output
