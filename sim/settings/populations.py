"""The paper's models on its data sets as laws of the ability, and settings of `measured`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from lab.trace.response import Response, read_response

STEP = 0.06
"""Default step size of the other policies."""
EPOCHS = 12
"""Default epochs of a run of the measured policy; those of the trainer's tiny task."""

Part = Literal["leak", "own", "others"]
"""Parts of the measured dynamics that can be switched off, see `sim.world.measured`."""


def response_at(path: str) -> Response:
    """Return a response file's content; the last one is read again only where it has changed."""
    try:
        changed = Path(path).stat().st_mtime_ns
    except OSError:
        changed = 0
    return _read(path, changed)


@lru_cache(maxsize=1)
def _read(path: str, changed: int) -> Response:
    return read_response(path)


class Ability(NamedTuple):
    """Ability law and size of one data set under one model."""

    mean: float
    """Mean probability of the correct answer."""
    concentration: float
    """a + b of the Beta law; below 2 it is U-shaped."""
    n_problems: int
    epochs: int
    """Length of the paper's training."""


FREE: dict[str, tuple[str, ...]] = {
    "beta": ("ability_mean", "ability_concentration"),
    "point": ("ability_mean",),
    "histogram": ("histogram",),
    "trace": ("trace",),
}
"""Populations given by settings, and which settings they need."""

NAMED: dict[str, Ability] = {
    "llama-math500": Ability(0.59, 0.18, 500, 30),
    "llama-amc": Ability(0.34, 0.3, 83, 30),
    "llama-aime24": Ability(0.17, 0.3, 30, 60),
    "llama-aime25": Ability(0.0, 0.3, 30, 60),
    "qwen-math500": Ability(0.755, 0.17, 500, 30),
    "qwen-amc": Ability(0.5, 0.1, 83, 30),
    "qwen-aime24": Ability(0.181, 0.25, 30, 60),
    "qwen-aime25": Ability(0.18, 0.25, 30, 60),
    "qwen3-math500": Ability(0.8, 0.8, 500, 30),
    "qwen3-amc": Ability(0.193, 0.3, 83, 30),
    "qwen3-aime24": Ability(0.033, 0.3, 30, 60),
    "qwen3-aime25": Ability(0.018, 0.3, 30, 60),
}
"""`llama` is Llama-3.2-3B-Instruct, `qwen` Qwen2.5-7B-Instruct, `qwen3` Qwen3-4B.

Mean and concentration come from a coarse grid, so that plain TTRL under the attractor policy's
default numbers comes near the TTRL row of the paper's `tab:full_fates`, see `docs/calibration.md`.
The fitted mean is not the base pass@1 of `tab:main` (Llama on MATH-500: .59 against 43.9 %):
nothing here reconciles the paper's two tables.

qwen3-math500 has no fate row; it is fitted to the text's Degraded 0.8, Learned 0.4 and 74.4 %
Stable Always Right at the start. No fates of llama-aime25, qwen-aime24 and the other three of
Qwen3-4B are published: their mean is the base pass@1, before `ability_floor` lifts it, and the
concentration is that of the model's or the data set's fitted rows.
"""


def sizes(population: str, response: str | None) -> dict[str, int]:
    """Return n_problems, n_answers and epochs of a response file or population.

    A population that is none of `NAMED` has the sizes of llama-math500.
    """
    if response is not None:
        content = response_at(response)
        return {"n_problems": content.n_problems, "n_answers": content.n_answers, "epochs": EPOCHS}
    law = NAMED.get(population, NAMED["llama-math500"])
    return {"n_problems": law.n_problems, "n_answers": 10, "epochs": law.epochs}
