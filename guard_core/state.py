"""The guard's memory of every problem, its update at a visit, and the rates read from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from array_api_compat import device

from guard_core.arrays import (
    Array,
    counter_dtype,
    divide,
    gather,
    namespace,
    on_cpu,
    ordered_sum,
    scatter,
    widen,
)
from guard_core.config import GuardConfig


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

    @classmethod
    def empty(
        cls, shape: tuple[int, ...], like: Array, config: GuardConfig, n_answers: int
    ) -> GuardState:
        """The state of (..., N) = `shape` problems before any visit.

        Args:
            shape: leading axes and the number of problems.
            like: gives array library, device and, if it holds floats, the float type.
            config: `W` and `label_from` set the widths.
            n_answers: width of the memory to begin with; it grows as answers appear.
        """
        xp = namespace(like)
        real = like.dtype if xp.isdtype(like.dtype, "real floating") else None
        width = n_answers if config.label_from == "memory" else 0

        def zeros(dtype: Any, *tail: int) -> Array:
            return xp.zeros((*shape, *tail), dtype=dtype, device=device(like))

        return cls(
            label=zeros(xp.int32) - 1,
            visits=zeros(xp.int32),
            flips=zeros(counter_dtype(xp, config.W), config.W),
            match_rates=zeros(real, config.W),
            had_competition=zeros(xp.bool),
            c2_fired=zeros(xp.int32),
            mps_active=zeros(xp.bool),
            steady=zeros(xp.int32),
            memory=zeros(real, width),
        )

    def take(self, problems: Array) -> GuardState:
        """The batch's rows.

        Args:
            problems: (..., P) problem indices, or (P,) for the same ones under all leading axes.

        Returns:
            A state whose arrays are (..., P), (..., P, W) and (..., P, A).
        """
        index, axis = self._index(problems)
        rows = {name: gather(array, index, axis) for name, array in self._arrays().items()}
        return GuardState(**rows)

    def put(self, problems: Array, rows: GuardState) -> GuardState:
        """Write a batch's rows back; NumPy and PyTorch reuse the old state's memory.

        Args:
            problems: as given to `take`; each problem at most once, else one of its rows is lost.
            rows: what `Guard.step` returned for them.

        Raises:
            ValueError: a problem occurs twice. Indices on a GPU are not looked at, which would wait
                for it.
        """
        _check_distinct(problems)
        index, axis = self._index(problems)
        whole = replace(self, memory=widen(self.memory, rows.memory.shape[-1]))
        new = rows._arrays()
        new["memory"] = widen(rows.memory, whole.memory.shape[-1])
        arrays = whole._arrays().items()
        return GuardState(**{name: scatter(old, index, new[name], axis) for name, old in arrays})

    def _arrays(self) -> dict[str, Array]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def _index(self, problems: Array) -> tuple[Array, int]:
        xp = namespace(self.label)
        index = xp.astype(problems, xp.int64, copy=False)
        shape = (*self.label.shape[:-1], problems.shape[-1])
        if tuple(index.shape) != shape:
            index = xp.broadcast_to(index, shape)
        return index, self.label.ndim - 1


def _check_distinct(problems: Array) -> None:
    if not on_cpu(problems):
        return
    xp = namespace(problems)
    ordered = xp.sort(problems, axis=-1)
    if bool(xp.any(ordered[..., 1:] == ordered[..., :-1])):
        raise ValueError("state: a problem occurs twice in the batch; visit each at most once")


class Rates(NamedTuple):
    """Flip and match statistics of the batch, this visit included."""

    flipped: Array
    """(..., P) bool; the label differs from the one before."""
    match_rate: Array
    """(..., P) share of this visit's votes that the label got (paper equation 2)."""
    flip_rate: Array
    """(..., P) share of the last W visits with a flip (equation 3), or 0 / 1 if instant."""
    contested: Array
    """(..., P) bool; the flip rate exceeds `tau_FR`."""
    mean_match_rate: Array
    """(..., P) mean of the last min(t, W) match rates (equation 5)."""


def advance(
    rows: GuardState, label: Array, match_rate: Array, memory: Array, config: GuardConfig
) -> tuple[GuardState, Rates]:
    """Record one visit, then derive the rates from the updated history.

    Args:
        label: (..., P) this visit's label.
        match_rate: (..., P) floats.
        memory: (..., P, A) the vote memory with this visit's votes.
    """
    xp = namespace(label)
    flipped = (label != rows.label) & (rows.label >= 0)
    flip = xp.astype(flipped, rows.flips.dtype)
    flips = xp.concat([rows.flips[..., 1:], flip[..., None]], axis=-1)
    match_rates = xp.concat([rows.match_rates[..., 1:], match_rate[..., None]], axis=-1)
    visits = rows.visits + 1
    if config.flip_rate == "instant":
        flip_rate = xp.astype(flip, match_rate.dtype)
    else:
        flip_rate = divide(xp.astype(ordered_sum(flips), match_rate.dtype), config.W)
    seen = xp.astype(xp.where(visits > config.W, config.W, visits), match_rate.dtype)
    contested = flip_rate > config.tau_FR
    rows = GuardState(
        label=label,
        visits=visits,
        flips=flips,
        match_rates=match_rates,
        had_competition=rows.had_competition | contested,
        c2_fired=rows.c2_fired,
        mps_active=rows.mps_active,
        steady=rows.steady,
        memory=memory,
    )
    return rows, Rates(flipped, match_rate, flip_rate, contested, ordered_sum(match_rates) / seen)
