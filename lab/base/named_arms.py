"""The named arms: one table of titles, descriptions, guards and other settings.

An arm that is added here can be run, compared and reported by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from guard_core.config import GuardConfig

OWN, PERMUTED, REPLAYED = "own", "permuted", "replayed"
"""Whose decisions a problem gets (docs/method.md, section 12): its own, those of a problem of its
batch that is drawn at random, or those of the run of another seed."""

BASELINE = "ttrl"
"""Name of the rule, and of the arm, that others are compared with."""
GUARD = "guard"
MATCHED = "matched"
RANDOM_SKIP = "random_skip"
"""Control that skips as many visits as a guard, at random; only in the simulator."""
CONTROLS = (MATCHED, RANDOM_SKIP)
VOTE = "vote"
"""No training: the majority of V votes of the start model. It is no arm that runs, but a row of
every table of arms: what TTRL has to beat."""
CUSTOM = "custom"
"""An arm that none of the names stands for; under a rule `RULE+custom`."""
CEILING = "truth"
"""Arm that trains on the true answers, an upper bound for label-free arms and no rival."""

OFF, _PAPER = GuardConfig.off(), GuardConfig.paper()


@dataclass(frozen=True, slots=True)
class NamedArm:
    """One arm of the table."""

    title: str
    about: str
    """What is trained on, in a sentence or two."""
    guard: GuardConfig = OFF
    settings: Mapping[str, float | str] = field(default_factory=dict)
    """Other settings of a run that the arm has values of its own for."""
    unguarded: str | None = None
    """The same arm without its guard; None where it has none."""


NAMED_ARMS = {
    BASELINE: NamedArm("TTRL", "The answer with most votes at this visit is the label; no guard."),
    GUARD: NamedArm(
        "TTRL-Guard",
        "TTRL under the guard with the paper's settings: lower weights for confident "
        "flip-prone problems (FRS), a share of the loss for strong minority answers "
        "(MPS), random skipping of high-risk problems (RCSU).",
        guard=_PAPER,
        unguarded=BASELINE,
    ),
    MATCHED: NamedArm(
        "TTRL at matched effort",
        "TTRL without a guard, its learning rate multiplied by one constant so that it "
        "moves as far per step as the guard's run: what moving less does by itself. "
        "Only what the guard gains over this arm is its own.",
    ),
    "frozen": NamedArm(
        "Frozen labels",
        "The label is the majority before training and never changes.",
        guard=OFF.set(label_from="frozen"),
    ),
    "memory": NamedArm(
        "Vote memory",
        "The label is the answer with most votes over all visits so far.",
        guard=OFF.set(label_from="memory"),
    ),
    "memory_guard": NamedArm(
        "Vote memory + guard",
        "Vote memory under the guard.",
        guard=GuardConfig().set(label_from="memory"),
        unguarded="memory",
    ),
    CEILING: NamedArm(
        "True labels (ceiling)",
        "Trained on the true answers: the ceiling, which no label-free rule can pass.",
    ),
    "release": NamedArm(
        "TTRL-Guard (release)",
        "TTRL under the guard as in the authors' released code.",
        guard=GuardConfig.release(),
        unguarded=BASELINE,
    ),
    "guard_release": NamedArm(
        "TTRL-Guard (authors' scripts)",
        "TTRL under the guard with the settings of the authors' scripts, which take the "
        "flip rate over one visit.",
        guard=GuardConfig.release_scripts("qwen-math500"),
        unguarded=BASELINE,
    ),
    **{
        part: NamedArm(f"{part.upper()} only", about, GuardConfig.only(part), unguarded=BASELINE)
        for part, about in (
            ("frs", "Only the guard's weights."),
            ("mps", "Only the guard's minority share."),
            ("rcsu", "Only the guard's skipping."),
        )
    },
    "positive": NamedArm(
        "Positive only",
        "TTRL that only rewards answers equal to the label and never punishes others.",
        guard=OFF.set(negative_scale=0.0),
    ),
    "early_stop": NamedArm(
        "Early stopping",
        "TTRL that stops training once too many labels flip.",
        guard=OFF.set(brake=0.0),
    ),
    "braked": NamedArm(
        "Braked learning rate",
        "TTRL whose learning rate is halved at every batch while too many labels flip.",
        guard=OFF.set(brake=0.5),
    ),
    "permuted": NamedArm(
        "Guard, permuted decisions",
        "The guard's decisions dealt to the problems of a batch at random: a control of its aim.",
        guard=_PAPER,
        settings={"treatment": PERMUTED},
    ),
    "replayed": NamedArm(
        "Guard, decisions of another seed",
        "The guard's decisions of a run of another seed: a control of its aim.",
        guard=_PAPER,
        settings={"treatment": REPLAYED},
    ),
    "kl": NamedArm(
        "KL penalty", "TTRL with a KL penalty to the start model.", settings={"kl_coef": 0.2}
    ),
    "memory_kl": NamedArm(
        "Vote memory + KL penalty",
        "Vote memory with a KL penalty to the start model.",
        guard=OFF.set(label_from="memory"),
        settings={"kl_coef": 0.2},
    ),
    "averaged": NamedArm(
        "Averaged weights",
        "TTRL, evaluated with a moving average of its weights.",
        settings={"ema_decay": 0.95},
    ),
    "recommended": NamedArm(
        "Recommended",
        "Vote memory whose labels change only by a clear lead, with a KL penalty.",
        guard=GuardConfig.recommended(),
        settings={"kl_coef": 0.05},
    ),
}
"""Name to arm, the most usual first: settings that several arms have are named by the first."""
