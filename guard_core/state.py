"""The guard's memory of every problem."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guard_core.checks import check_problems, check_rows
from guard_core.config import GuardConfig
from guard_core.votes import Array, as_ids, as_numpy, widen


@dataclass(frozen=True, slots=True)
class GuardState:
    """The guard's memory; `(..., N)` for all problems, `(..., P)` for the rows of a batch."""

    label: Array
    """(..., N) integers; the last label, -1 for none yet."""
    visits: Array
    """(..., N) integers; |H|, how often the problem was in a batch."""
    flips: Array
    """(..., N, W) integers; 1 where the label changed, newest last, 0 where there is no history."""
    match_rates: Array
    """(..., N, W) floats; newest last, 0 where there is no history."""
    had_competition: Array
    """(..., N) bool; the flip rate once exceeded `tau_FR`."""
    c2_fired: Array
    """(..., N) integers; visits at which condition C2 fired, never reset."""
    mps_active: Array
    """(..., N) bool; minority protection is on."""
    steady: Array
    """(..., N) integers; visits in a row with a flip rate of at most `tau_FR`."""
    memory: Array
    """(..., N, A) floats; discounted votes of all visits; A is 0 unless `label_from="memory"`."""

    def __post_init__(self) -> None:
        as_numpy(self, *GuardState.__slots__)
        for name in ("match_rates", "memory"):  # whole numbers would cut off what is added
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))

    def columns(self) -> dict[str, Array]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in GuardState.__slots__}

    @classmethod
    def empty(cls, shape: tuple[int, ...], config: GuardConfig, n_answers: int) -> GuardState:
        """The state of (..., N) = `shape` problems before any visit; the memory grows."""
        width = n_answers if config.labels.label_from == "memory" else 0

        def zeros(dtype: Any, *tail: int) -> Array:
            return np.zeros((*shape, *tail), dtype)

        return cls(
            label=zeros(np.int32) - 1,
            visits=zeros(np.int32),
            flips=zeros(np.int16, config.rates.W),
            match_rates=zeros(np.float64, config.rates.W),
            had_competition=zeros(np.bool_),
            c2_fired=zeros(np.int32),
            mps_active=zeros(np.bool_),
            steady=zeros(np.int32),
            memory=zeros(np.float64, width),
        )

    def take(self, problems: Array) -> GuardState:
        """The rows of (..., P) problems, or of (P,) the same ones under all leading axes.

        Raises:
            ValueError: a problem is none of the N.
        """
        at = self._index(problems)
        return GuardState(*(getattr(self, name)[at] for name in GuardState.__slots__))

    def put(self, problems: Array, rows: GuardState) -> GuardState:
        """Write a batch's rows back, into the old state's memory unless that cannot be written.

        Raises:
            ValueError: a problem occurs twice or is none of the N, or the rows are not those of
                these problems under the same settings.
        """
        at = self._index(problems)
        ordered = np.sort(at[-1], axis=-1)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise ValueError("state: a problem occurs twice in the batch; visit each at most once")
        check_rows(self, rows, at[-1].shape)
        whole = replace(self, memory=widen(self.memory, rows.memory.shape[-1]))
        rows = replace(rows, memory=widen(rows.memory, whole.memory.shape[-1]))
        arrays = {name: np.require(getattr(whole, name), None, "W") for name in self.__slots__}
        for name, array in arrays.items():
            array[at] = getattr(rows, name)
        return replace(whole, **arrays)

    def _index(self, problems: Array) -> tuple[Array, ...]:
        """Places of the problems under all leading axes."""
        index, leading = as_ids(problems, "problems"), self.label.shape[:-1]
        check_problems(index, self.label.shape)
        grid = np.indices((*leading, index.shape[-1]), sparse=True)[:-1]
        return (*grid, np.broadcast_to(index, (*leading, index.shape[-1])))
