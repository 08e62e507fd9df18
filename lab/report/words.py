"""Sentences of the page, and the meaning of its terms."""

from __future__ import annotations

from collections.abc import Sequence

from guard_core.rules import RULES
from lab.base.arms import BASELINE, GUARD, MATCHED, RANDOM_SKIP, matched_target, rule_of, title
from lab.base.stats import interval
from lab.compare.tables import Finding, Quantity

NOISE = (
    "Every difference is paired by seed. It counts as within noise when its 95 % interval (t "
    "distribution over the pairs) contains zero; with few pairs only large differences can be "
    "shown, and with several comparisons on one page some cross the line by chance."
)

PLANTED = (
    "The tiny task is not a natural one. Some of its wrong rivals are planted: before any run the "
    "model was trained on a mixture of the right rule and two misconceptions, with slips. On the "
    "default problems the start model gives the right answer .61 of the probability mass, the "
    "other answers of the planted rules .085, and answers of neither .29. The task shows the "
    "mechanism in a real model under real GRPO; how often rivals are that strong in practice it "
    "cannot show."
)

SIMULATED = (
    "The simulator has no language model: a softmax policy over each problem's answers is moved by "
    "the same update and watched by the same guard. What it shows depends on the population and "
    "the coupling that were assumed."
)

MEASURED = (
    "The simulator's policy measured is a real model, linearised over its token tree before any "
    "training and moved by the trainer's optimizer. No parameter of it was fitted to a run."
)

TABLE = (
    "Mean ± standard deviation over n replicates. TotalDeg is the share of problems that training "
    "made worse (Degraded and Marginal Degraded); L/D is Learned by Degraded, not defined where "
    "nothing degraded. The best pass@1 on the way is chosen with hindsight, from the true answers."
)

ARMS = {
    "ttrl": "The answer with most votes at this visit is the label; no guard.",
    "guard": "TTRL under the guard with the paper's settings: lower weights for confident "
    "flip-prone problems (FRS), a share of the loss for strong minority answers (MPS), random "
    "skipping of high-risk problems (RCSU).",
    "release": "TTRL under the guard as in the authors' released code.",
    "frs": "Only the guard's weights.",
    "mps": "Only the guard's minority share.",
    "rcsu": "Only the guard's skipping.",
    "matched": "TTRL without a guard, its learning rate multiplied by one constant so that it "
    "moves as far per step as the guard's run: what moving less does by itself. Only what the "
    "guard gains over this arm is its own.",
    "frozen": "The label is the majority before training and never changes.",
    "memory": "The label is the answer with most votes over all visits so far.",
    "memory_guard": "Vote memory under the guard.",
    RANDOM_SKIP: "TTRL that skips visits at random, as many as the guard skips: what skipping does "
    "by itself.",
    "positive": "TTRL that only rewards answers equal to the label and never punishes others.",
    "early_stop": "TTRL that stops training once too many labels flip.",
    "braked": "TTRL whose learning rate is halved at every batch while too many labels flip.",
    "kl": "TTRL with a KL penalty to the start model.",
    "memory_kl": "Vote memory with a KL penalty to the start model.",
    "averaged": "TTRL, evaluated with a moving average of its weights.",
    "recommended": "Vote memory whose labels change only by a clear lead, with a KL penalty.",
    "truth": "Trained on the true answers: the ceiling, which no label-free rule can pass.",
}
"""Arm to what it is trained on."""

_DUEL = {
    "guard": (title(GUARD), title(MATCHED)),
    "rival": ("The best simple rival ({note})", title(GUARD)),
}


def about(arm: str) -> str:
    """What an arm is trained on, in a sentence or two.

    Args:
        arm: its name, without settings that differ from the arm's own.
    """
    if arm in ARMS:
        return ARMS[arm]
    if (target := matched_target(arm)) is not None:
        return f"Moves as far per step as {title(target)}, without its guard: a control of effort."
    if arm.startswith(f"{RANDOM_SKIP}_"):
        return "Skips visits at random, as many as the guard that it is named after: a control."
    rule = rule_of(arm)
    if rule is None:
        return "An arm with settings of its own, which stand with the runs below."
    doc = (RULES[rule].__doc__ or "").split("\n\n")[0].replace("`", "")
    return f"{title(arm)}. {' '.join(doc.split())}"


def sentence(finding: Finding) -> str:
    """A finding with its uncertainty, and whether it is more than noise."""
    parts = [part for part in finding.parts if part.value.n]
    if not parts:
        return f"{finding.title}: not measured{_bracket(finding.note)}."
    if finding.key == "damage":
        value = parts[0].value
        worse = f"{value.mean:.1f} % of the problems worse"
        bounds = interval(value.low, value.high, signed=False)
        return f"{title(BASELINE)} makes {worse} (TotalDeg, {bounds})."
    subject, reference = _DUEL[finding.key]
    numbers = " and ".join(_number(part) for part in parts)
    subject = subject.format(note=finding.note)
    return f"{subject} {_outcome(parts)} {reference}: {numbers}."


def _number(part: Quantity) -> str:
    value = part.value
    facts = [interval(value.low, value.high)] if value.has_interval else []
    facts += [value.shows()] if value.within_noise else []
    return f"{part.label} {value.mean:+.1f} points ({', '.join(facts)})"


def _outcome(parts: Sequence[Quantity]) -> str:
    shown = [part.value.mean > 0 for part in parts if not part.value.within_noise]
    if not shown:
        return "shows no difference beyond noise from"
    if len(set(shown)) > 1:
        return "does better in one number and worse in the other than"
    side = "better" if shown[0] else "worse"
    some = len(shown) < len(parts)
    return (
        f"does {side} in one number, with the other within noise, than"
        if some
        else (f"does {side} than")
    )


def _bracket(note: str) -> str:
    return f" ({note})" if note else ""
