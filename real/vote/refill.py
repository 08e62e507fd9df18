"""Dynamic sampling: batches are sampled until enough problems have rewards that differ.

Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", section 3.2.
"""

from __future__ import annotations

from itertools import chain

from real.settings.config import TrainConfig
from real.update.group import Group, kept
from real.vote.pay import mini_batches


class Refill:
    """Groups that wait until there are enough of them for an update.

    The problems of every sampled batch vote, and the guard decides on them, whether they train or
    not. Groups that are dropped or have equal rewards do not train, and neither do those beyond
    `batch_size`. While groups wait the weights stay as they are, so that all were drawn from the
    policy that they train. The learning rate's schedule goes on with every sampled batch.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Wait for nothing yet; with `max_num_gen_batches` 1 nothing ever waits."""
        self._most, self._size = config.max_num_gen_batches, config.batch_size
        self._mini = config.mini_batch
        self._waiting: list[list[Group]] = []
        self._n_batches = 0
        self._columns: dict[str, int] = {}

    @property
    def waits(self) -> bool:
        """Sampled groups wait for further ones: no point to stop at."""
        return self._n_batches > 0

    @property
    def columns(self) -> dict[str, int]:
        """Columns of the steps about the last batch; none where batches are not refilled."""
        return self._columns

    def mini_batches(
        self, groups: list[Group], further: list[list[Group]], ends_run: bool
    ) -> list[list[Group]]:
        """Return the groups of every optimizer step after a batch; all empty while groups wait.

        Args:
            groups: (P,) groups of the batch's problems.
            further: as for `real.vote.pay.mini_batches`.
            ends_run: no further batch will come.
        """
        planned = mini_batches(groups, further, self._mini)
        if self._most == 1:
            return planned
        problems = mini_batches(groups, further, 1)
        self._waiting += [own for own in problems if kept(own, drop_uniform=True)]
        self._n_batches += 1
        # A smaller batch, at the end of an epoch, has steps for fewer problems.
        room = min(self._size, len(planned) * self._mini)
        enough = len(self._waiting) >= self._size == room
        if not enough and self._n_batches < self._most and not ends_run:
            self._columns = {"n_gen_batches": 0, "n_trained": 0}
            return [[] for _ in planned]
        chosen = self._waiting[:room]
        self._columns = {"n_gen_batches": self._n_batches, "n_trained": len(chosen)}
        self._waiting, self._n_batches = [], 0
        starts = range(0, len(chosen), self._mini)
        parts = [list(chain(*chosen[start : start + self._mini])) for start in starts]
        return [*([] for _ in planned[len(parts) :]), *parts]
