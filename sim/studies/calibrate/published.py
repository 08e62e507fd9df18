"""The paper's fate rows with the populations that are fitted to them."""

from __future__ import annotations

from typing import NamedTuple

from lab.base.errors import UserError
from lab.compare.published import (
    AIME24,
    AIME25,
    AMC,
    CELLS,
    FATES,
    LLAMA,
    MATH,
    N_PROBLEMS,
    PASS_AT_1,
    QWEN,
    Shares,
    is_whole,
)

__all__ = ["CELLS", "ROWS", "Row", "Shares", "odd_cells", "rows_named"]


class Row(NamedTuple):
    """One model on one data set, under TTRL and under TTRL-Guard."""

    name: str
    """Also a name of `sim.settings.populations.NAMED`, where the fit starts."""
    title: str
    n_problems: int
    epochs: int
    ttrl: Shares
    guard: Shares
    pass_at_1: tuple[float, float, float]
    """Percent before training, under TTRL and under the guard; never fitted to."""


def _row(name: str, model: str, data: str, epochs: int) -> Row:
    before, ttrl, guard = (PASS_AT_1[model, data, method] for method in ("base", "ttrl", "guard"))
    return Row(
        name=name,
        title=f"{model} {data}",
        n_problems=N_PROBLEMS[data],
        epochs=epochs,
        ttrl=FATES[model, data, "ttrl"],
        guard=FATES[model, data, "guard"],
        pass_at_1=(before, ttrl, guard),
    )


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        _row("llama-math500", LLAMA, MATH, 30),
        _row("llama-amc", LLAMA, AMC, 30),
        _row("llama-aime24", LLAMA, AIME24, 60),
        _row("qwen-math500", QWEN, MATH, 30),
        _row("qwen-amc", QWEN, AMC, 30),
        _row("qwen-aime25", QWEN, AIME25, 60),
    )
}


def rows_named(names: tuple[str, ...]) -> tuple[Row, ...]:
    """The rows of these names, all if none is given.

    Raises:
        UserError: a name is unknown or there twice.
    """
    for name in names:
        if name not in ROWS:
            raise UserError(f"rows {name!r}: unknown, use one of {', '.join(ROWS)}")
        if names.count(name) > 1:
            raise UserError(f"rows: {name} is there twice")
    return tuple(ROWS[name] for name in names or ROWS)


def odd_cells(row: Row) -> list[tuple[str, str]]:
    """(method, cell) of the shares that are no whole number of problems at the printed digit."""
    return [
        (method, cell)
        for method, shares in (("ttrl", row.ttrl), ("guard", row.guard))
        for cell, share in zip(CELLS, shares, strict=True)
        if not is_whole(share, row.n_problems)
    ]
