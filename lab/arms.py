"""The arms of every comparison: what is trained on, by which guard, with how large a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from guard_core import GuardConfig
from lab.errors import UserError


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train, the same in both worlds (SPEC section 12)."""

    name: str
    title: str
    guard: GuardConfig
    labels: Literal["votes", "truth"] = "votes"
    """`truth` trains on the true answers: the ceiling, which no label-free rule can pass."""
    step_factor: float = 1.0
    """Constant factor on the learning rate."""


BASELINE = "ttrl"
GUARD = "guard"
MATCHED = "matched"
DEMO_ARMS = ("ttrl", "guard", "matched", "frozen", "memory")
ALL_ARMS = (*DEMO_ARMS, "memory_guard", "truth")

_OFF = GuardConfig.off

_ARMS: dict[str, tuple[str, Callable[[], GuardConfig], Literal["votes", "truth"]]] = {
    "ttrl": ("TTRL", _OFF, "votes"),
    "guard": ("TTRL-Guard", GuardConfig.paper, "votes"),
    "release": ("TTRL-Guard (release)", GuardConfig.release, "votes"),
    "frs": ("FRS only", lambda: GuardConfig.only("frs"), "votes"),
    "mps": ("MPS only", lambda: GuardConfig.only("mps"), "votes"),
    "rcsu": ("RCSU only", lambda: GuardConfig.only("rcsu"), "votes"),
    "matched": ("TTRL at matched effort", _OFF, "votes"),
    "frozen": (
        "Frozen labels",
        lambda: GuardConfig(frs=False, mps=False, rcsu=False, label_from="frozen"),
        "votes",
    ),
    "memory": (
        "Vote memory",
        lambda: GuardConfig(frs=False, mps=False, rcsu=False, label_from="memory"),
        "votes",
    ),
    "memory_guard": (
        "Vote memory + guard",
        lambda: GuardConfig(label_from="memory"),
        "votes",
    ),
    "truth": ("True labels (ceiling)", _OFF, "truth"),
}


def arm(name: str, step_factor: float = 1.0) -> Arm:
    """An arm by name.

    Raises:
        UserError: no arm has that name.
    """
    if name not in _ARMS:
        raise UserError(f"arm {name!r}: unknown, use one of {', '.join(_ARMS)}")
    title, guard, labels = _ARMS[name]
    return Arm(name, title, guard(), labels, step_factor)


_OTHER_TITLES = {"random_skip": "TTRL at random skips"}
"""Of arms that exist in one world only, so that no other takes them for plain TTRL."""


def title(name: str) -> str:
    """The name shown to readers; unknown names are shown as they are."""
    return _ARMS[name][0] if name in _ARMS else _OTHER_TITLES.get(name, name)
