"""Visit 0: the votes of all problems before training, and what a rule's labels need beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from guard_core.rules import Need
from real.engines.rollouts import Rollouts
from real.problems.prompts import PromptSet
from real.record.evaluation import sample_answers
from real.settings.seeds import Stream, torch_generator
from real.vote.observing import Fields, fields_of
from real.vote.paying import Observed
from real.vote.second_votes import second_of

if TYPE_CHECKING:
    from real.record.journal import Journal
    from real.run import Run

Ints = NDArray[np.int64]
Watch = Callable[[Sequence[int], Rollouts], None]
_OF_LABELS = frozenset({Need.STEP_LOGPROB, Need.TOOL})
"""Observations of single responses that decide labels; others matter to rewards alone."""


def begin(run: Run, log: Journal) -> None:
    """What a rule has done once, before the first votes; what is worth reading is written down."""
    second = second_of(run)
    if second is not None and (facts := second.begin(run)):
        log.note(**facts)
        log.write_json("paraphrases.json", second.values())


def first_votes(run: Run) -> tuple[Ints, Observed | None]:
    """(N, V) answer ids, -1 unparseable, and what was observed of these responses.

    The teacher of Co-rewarding II is the model itself by now; its votes are further ones.
    """
    observer = run.observer
    if observer is None:
        return _sample(run, run.prompts, Stream.VOTES), None
    needs = observer.rule.needs & _OF_LABELS
    parts: list[Fields] = []

    def watch(problems: Sequence[int], rollouts: Rollouts) -> None:
        parts.append(fields_of(run, observer, needs, problems, rollouts))

    answers_NV = _sample(run, run.prompts, Stream.VOTES, watch if needs else None)
    found: Fields = {str(n): np.concatenate([part[str(n)] for part in parts]) for n in needs}
    if observer.second is not None:
        found["second"] = _sample(run, observer.second.prompts(run.prompts), Stream.SECOND)
    return answers_NV, Observed(found)


def _sample(run: Run, prompts: PromptSet, stream: Stream, watch: Watch | None = None) -> Ints:
    return sample_answers(
        run.engine,
        run.policy,
        prompts,
        run.supervisor.answer_ids,
        run.config.n_votes,
        run.sampling,
        run.config.max_rows * run.ranks.world,
        torch_generator(run.config.seed, stream, 0, device=run.policy.device),
        version=0,
        watch=watch,
    )
