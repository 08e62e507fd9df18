"""Sentences of the page, and the meaning of its terms."""

from __future__ import annotations

from collections.abc import Sequence

from lab.arms import BASELINE, GUARD, MATCHED, title
from lab.compare.headline import Finding, Quantity
from lab.report.content.digest import ReportedComparison
from lab.stats.paired import Estimate
from lab.stats.words import counted, interval

QUESTION = (
    "Does a learner that trains on its own majority vote extinguish correct answers that it could "
    "already give, and does a guard that sees no true answer save them?"
)

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
    "truth": "Trained on the true answers: the ceiling, which no label-free rule can pass.",
}
"""Arm to what it is trained on."""

_DUEL = {
    "guard": (title(GUARD), title(MATCHED)),
    "rival": ("The best simple rival ({note})", title(GUARD)),
}


def summary(world: ReportedComparison) -> str:
    """The comparison and its main numbers with their uncertainty, in sentences."""
    arms, pairs = len(world.comparison.arms), len(world.comparison.pairs)
    size = f"({counted(arms, 'arm')}, {counted(pairs, 'replicate')})"
    findings = " ".join(sentence(finding) for finding in world.findings)
    return f"{size}: {findings}"


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


def style(value: Estimate) -> str:
    """Return the class that a paired difference is styled with: `noise`, `better` or `worse`."""
    if value.n == 0 or value.within_noise:
        return "noise"
    return "better" if value.mean > 0 else "worse"


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
