"""Every rule in NumPy, PyTorch and array-api-strict, in double and single precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guard_histories import DOUBLE, SINGLE, Library, checked
from hypothesis import given
from rule_sights import Sight, sights, top

from guard_core import Draws, Guard, GuardConfig
from guard_core.rules import RULES, Rule, make_rule, response_streams

COUNTED = {
    "ttrl", "srt", "srt_soft", "ttcs", "mm_upt", "empo", "snr", "ddrl", "disctt", "random",
    "format", "maj_at_n", "coverrl", "t3rl", "self_harmony", "co_rewarding_1", "co_rewarding_2",
    "one_shot_em",
}  # fmt: skip
"""Rules whose rewards are made of counts; the others add up floats, each library in its order."""
ALL = [*map(make_rule, RULES), make_rule("scope", {"confidence": "release"})]
GUARDS = {"paper": GuardConfig.paper(), "release": GuardConfig.release()}


def walk(rule: Rule, shown: Sight, library: Library, config: GuardConfig) -> dict[str, Any]:
    """Output of the rule, and of a guarded step."""
    seen = shown.seen(library)
    scores = rule.scores(seen)
    label = library.ints(top(scores))
    guard, shape = Guard(config), shown.answers.shape[:-1]
    state = guard.init(shape[-1], library.floats([0.0]), leading=shape[:-1])
    draws = Draws(*(library.floats(np.full(shape, 0.5)) for _ in range(3)))
    _, decision = guard.step(state, seen.votes, draws, scores)
    majority, minority = response_streams(rule, seen, decision, config)
    made = {
        "scores": scores,
        "rewards": rule.pay(seen, label),
        "weight": rule.weigh(seen, label),
        "label": decision.label,
        "majority": majority,
        "minority": minority,
    }
    if "verdicts" in rule.needs:
        made["questions"] = rule.questions(seen, label)
    if (direct := rule.is_direct(seen, label)) is not None:
        made["direct"] = direct
    for name in ("rewards", "weight", "majority", "minority"):
        assert made[name].dtype == library.real, name
    return {name: np.asarray(value) for name, value in made.items()}


@pytest.mark.parametrize("rule", ALL, ids=lambda r: f"{r.name}-{r.to_dict().get('confidence')}")
@pytest.mark.parametrize("libraries", [DOUBLE, SINGLE], ids=["float64", "float32"])
@checked(3)
@given(shown=sights())
def test_libraries_agree(libraries: list[Library], rule: Rule, shown: Sight) -> None:
    """Rules of counts to the last bit, the others to their precision."""
    tolerance = 1e-12 if libraries is DOUBLE else 1e-4
    for config in GUARDS.values():
        base = walk(rule, shown, libraries[0], config)
        for library in libraries[1:]:
            for name, value in walk(rule, shown, library, config).items():
                if name in STANDARDISED and rule.pays == "label":
                    assert value.tobytes() == base[name].tobytes(), name
                exact = rule.name in COUNTED and name not in STANDARDISED
                near = {"rtol": 0, "atol": 0 if exact else tolerance}
                np.testing.assert_allclose(value, base[name], **near, err_msg=name)


STANDARDISED = {"majority", "minority"}
"""Means over responses; closed forms, and so to the bit, only where a rule pays the label."""
