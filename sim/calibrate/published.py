"""The paper's fate rows (`tab:full_fates`) and scores (`tab:main`) as data."""

from __future__ import annotations

from typing import NamedTuple

from lab.errors import UserError

CELLS = (
    "Degraded",
    "Marginal Degraded",
    "Learned",
    "Stable Always Right",
    "Always Wrong",
)
"""Printed fates that are no sum of others. Marginal Stable is not printed; with what matches no
fate it is what the cells leave of 100, so it is no further number."""

Shares = tuple[float, float, float, float, float]
"""Percent of the problems, in the order of `CELLS`."""


class Row(NamedTuple):
    """One model on one data set, under TTRL and under TTRL-Guard."""

    name: str
    """Also a name of `sim.populations.NAMED`, where the fit starts."""
    title: str
    n_problems: int
    epochs: int
    ttrl: Shares
    guard: Shares
    pass_at_1: tuple[float, float, float]
    """Percent before training, under TTRL and under the guard; never fitted to."""


_LLAMA, _QWEN = "Llama-3.2-3B", "Qwen2.5-7B"

ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row(
            "llama-math500",
            f"{_LLAMA} MATH-500",
            500,
            30,
            (53.8, 6.4, 0.2, 2.8, 36.4),
            (24.0, 4.0, 0.8, 32.0, 35.2),
            (43.9, 52.1, 57.3),
        ),
        Row(
            "llama-amc",
            f"{_LLAMA} AMC",
            83,
            30,
            (12.0, 3.6, 1.2, 24.1, 55.4),
            (5.0, 3.0, 2.4, 28.3, 55.4),
            (20.6, 31.3, 36.8),
        ),
        Row(
            "llama-aime24",
            f"{_LLAMA} AIME 2024",
            30,
            60,
            (3.3, 3.3, 3.3, 13.3, 76.7),
            (0.0, 3.3, 6.7, 16.7, 73.3),
            (4.7, 13.3, 19.5),
        ),
        Row(
            "qwen-math500",
            f"{_QWEN} MATH-500",
            500,
            30,
            (13.8, 2.0, 0.6, 63.0, 20.2),
            (3.8, 1.6, 1.0, 68.0, 22.0),
            (77.2, 81.0, 82.0),
        ),
        Row(
            "qwen-amc",
            f"{_QWEN} AMC",
            83,
            30,
            (1.2, 1.2, 0.0, 48.2, 47.0),
            (0.0, 1.2, 1.2, 50.6, 44.6),
            (43.6, 52.4, 53.8),
        ),
        Row(
            "qwen-aime25",
            f"{_QWEN} AIME 2025",
            30,
            60,
            (3.3, 0.0, 0.0, 13.3, 76.7),
            (0.0, 3.3, 3.3, 20.0, 73.3),
            (6.4, 15.6, 24.1),
        ),
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
    found = []
    for method, shares in (("ttrl", row.ttrl), ("guard", row.guard)):
        for cell, share in zip(CELLS, shares, strict=True):
            problems = round(share * row.n_problems / 100)
            # .05 is the rounding of a printed digit; the rest is for the last bit.
            if abs(100 * problems / row.n_problems - share) > 0.05 + 1e-9:
                found.append((method, cell))
    return found


def most_final_accuracy(row: Row, method: str, always_wrong: float = 0.5) -> float:
    """Greatest mean final label accuracy, in percent, that a fate row allows (SPEC section 10).

    Args:
        row: of the paper.
        method: `ttrl` or `guard`.
        always_wrong: greatest final accuracy of an Always Wrong problem; the definition allows
            just below .5, and a problem that stays where it began below .15.
    """
    shares = dict(zip(CELLS, row.ttrl if method == "ttrl" else row.guard, strict=True))
    # Degraded: below .6, or it would be Stable; Marginal Degraded: below .7 - .15.
    most = {"Degraded": 0.6, "Marginal Degraded": 0.55, "Always Wrong": always_wrong}
    rest = 100 - sum(shares.values())
    return rest + sum(share * most.get(cell, 1.0) for cell, share in shares.items())
