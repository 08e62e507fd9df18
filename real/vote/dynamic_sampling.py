"""Dynamic sampling: updates wait until enough problems have rewards that differ.

Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", section 3.2;
https://arxiv.org/abs/2503.14476.
"""

from __future__ import annotations

from itertools import chain

from real.settings.groups import UpdateSettings
from real.update.packing import Group


class DynamicSampler:
    """Collects groups until there are enough of them for an update.

    The problems of every sampled batch vote, and the guard decides on them, whether they train or
    not. Groups that are dropped or have equal rewards do not train, and neither do those beyond
    `batch_size`. While groups wait the weights stay, and the learning rate's schedule goes on.
    """

    def __init__(self, config: UpdateSettings, n_problems: int) -> None:
        self._most, self._mini = config.max_num_gen_batches, config.mini_batch
        self._size = min(config.batch_size, n_problems)
        self._waiting: list[list[Group]] = []
        self._n_batches = 0
        self.columns: dict[str, int] = {}
        """Columns of the steps about the last batch; none where every batch trains."""

    @property
    def waits(self) -> bool:
        """Sampled groups wait for the next batch: no point to stop at."""
        return self._n_batches > 0

    def mini_batches(
        self, groups: list[Group], extra: list[list[Group]], ends_run: bool
    ) -> list[list[Group]]:
        """Return the groups of every optimizer step, with their problems' `extra` ones.

        `extra` has a list for each problem, or is empty. While groups wait all steps are empty.
        """
        parts = [slice(start, start + self._mini) for start in range(0, len(groups), self._mini)]
        if self._most == 1:
            return [[*groups[part], *chain(*extra[part])] for part in parts]
        for place, group in enumerate(groups):
            problem = [group, *chain(*extra[place : place + 1])]
            if any(one.trains for one in problem):
                self._waiting.append(problem)
        self._n_batches += 1
        # A smaller batch, at the end of an epoch, has steps for fewer problems.
        room = min(self._size, len(parts) * self._mini)
        enough = len(self._waiting) >= self._size == room
        if not enough and self._n_batches < self._most and not ends_run:
            self.columns = {"n_gen_batches": 0, "n_trained": 0}
            return [[] for _ in parts]
        chosen = self._waiting[:room]
        self.columns = {"n_gen_batches": self._n_batches, "n_trained": len(chosen)}
        self._waiting, self._n_batches = [], 0
        steps = [list(chain(*chosen[part])) for part in parts if part.start < len(chosen)]
        return [*([] for _ in parts[len(steps) :]), *steps]
