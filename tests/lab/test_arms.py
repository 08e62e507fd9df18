import pytest

from guard_core import GuardConfig, Labels
from guard_core.rules import RULES, make_rule
from lab.base.arms import (
    ALL_ARMS,
    BASELINE,
    UNGUARDED,
    WITH_RULES,
    about,
    arm,
    check_fit,
    is_guarded,
    matched_target,
    replayed_target,
    rivals,
    rule_of,
    title,
    unguarded,
)
from lab.base.errors import UserError


def test_what_each_arm_trains_on():
    off = GuardConfig.off()
    assert arm("ttrl").guard == arm("matched").guard == off
    assert arm("guard").guard == GuardConfig.paper()
    assert arm("release").guard == GuardConfig.release()
    for name in ("frozen", "memory"):
        guard = arm(name).guard
        assert guard.labels.label_from == name and not guard.acts
    assert arm("memory_guard").guard == GuardConfig(labels=Labels(label_from="memory"))
    assert [name for name in ALL_ARMS if arm(name).labels == "truth"] == ["truth"]
    for name in ("frs", "mps", "rcsu"):
        assert arm(name).guard == GuardConfig.only(name)


def test_the_simple_alternatives():
    assert arm("positive").guard == GuardConfig.off().set(negative_scale=0.0)
    assert (arm("kl").guard, arm("kl").settings) == (GuardConfig.off(), {"kl_coef": 0.2})
    assert arm("memory_kl").guard == arm("memory").guard
    assert arm("memory_kl").settings == {"kl_coef": 0.2}
    averaged = arm("averaged")
    assert (averaged.guard, averaged.settings) == (GuardConfig.off(), {"ema_decay": 0.95})
    assert arm("ttrl").settings == {}
    recommended = arm("memory").guard.set(hysteresis=0.25)
    assert arm("recommended").guard == GuardConfig.recommended() == recommended
    assert GuardConfig.profile("recommended") == recommended
    assert arm("recommended").settings == {"kl_coef": 0.05}
    assert [arm(n).guard.brake.brake for n in ("early_stop", "braked")] == [0, 0.5]


@pytest.mark.parametrize(
    "name",
    [
        *("majority", "", "+", "scope+", "+guard", "scope+ttrl", "scope+truth", "scope+matched"),
        *("ttrl+guard", "guard+scope", "scope+srt", "scope+guard+memory", "Scope"),
    ],
)
def test_unknown_arms(name):
    with pytest.raises(UserError) as caught:
        arm(name)
    message = str(caught.value)
    assert message.startswith(f"arm {name!r}: unknown; ") and "; use one of ttrl, guard," in message
    assert all(known in message for known in (*RULES, *WITH_RULES))
    assert title(name) == name and unguarded(name) is None


def test_a_rule_is_an_arm():
    for name, rule in RULES.items():
        made = arm(name, step_factor=0.5)
        assert (made.name, made.rule, made.title) == (name, name, rule.title)
        assert (made.labels, made.step_factor) == ("votes", 0.5)
        assert made.title == title(name)
        untrained = rule.loss == "none"
        assert made.guard == (arm("memory").guard if untrained else GuardConfig.off())
    assert [name for name in RULES if arm(name).guard != GuardConfig.off()] == ["maj_at_n"]
    for name in ALL_ARMS:
        assert arm(name).rule == "ttrl"


def test_a_rule_under_a_guard_or_another_label_source():
    for other in WITH_RULES:
        made = arm(f"t3rl+{other}")
        assert (made.rule, made.guard) == ("t3rl", arm(other).guard)
        assert made.title == title(f"t3rl+{other}") == f"T3RL + {title(other)}"
    assert arm("scope+guard", 0.7).step_factor == 0.7
    assert title("scope+guard") == "SCOPE + TTRL-Guard"
    names = [*ALL_ARMS, *RULES, *(f"srt+{other}" for other in WITH_RULES)]
    assert len({title(name) for name in names}) == len(set(names))


def test_what_a_rule_cannot_be_combined_with():
    for name, rule in RULES.items():
        for other in WITH_RULES:
            if rule.loss != "rewards":
                refusal = f"{rule.title} has no rewards that {other} could work on"
            elif not rule.has_label:
                refusal = f"{rule.title} has no label that a guard or memory could work on"
            elif other == "frozen" and not rule.follows_label:
                refusal = f"{rule.title} makes new labels on every visit"
            elif name == BASELINE:
                refusal = "unknown; "
            else:
                assert arm(f"{name}+{other}").rule == name
                continue
            with pytest.raises(UserError) as caught:
                arm(f"{name}+{other}")
            assert f"arm '{name}+{other}': {refusal}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "guard", "labels", "words"),
    [
        ("rent", GuardConfig.paper(), "votes", "has no label .*; take --arm rent"),
        ("scope", arm("frozen").guard, "votes", "new labels.*--profile off"),
        ("scope", GuardConfig.off(), "truth", "does not use a given label.*; take labels = votes"),
        ("maj_at_n", GuardConfig.paper(), "votes", "trains nothing"),
    ],
)
def test_settings_of_a_run_that_do_not_fit_its_rule(name, guard, labels, words):
    with pytest.raises(UserError, match=f"^rule = {name}: .*{words}") as error:
        check_fit(make_rule(name), guard, labels)
    assert "\n" not in str(error.value)


def test_the_same_arm_without_its_guard():
    assert {name: unguarded(name) for name in UNGUARDED} == UNGUARDED
    assert unguarded("guard") == "ttrl" and unguarded("memory_guard") == "memory"
    assert unguarded("scope+guard") == unguarded("scope+rcsu") == "scope"
    assert unguarded("scope+memory_guard") == "scope+memory"
    for name in ("ttrl", "memory", "frozen", "truth", "scope", "scope+memory", "random_skip"):
        assert unguarded(name) is None


def test_every_guard_has_an_arm_at_matched_effort():
    assert matched_target("matched") == "guard"
    for name in ("frs", "memory_guard", "srt+guard", "scope+memory_guard"):
        own = arm(f"matched_{name}", step_factor=0.5)
        plain = arm(unguarded(name) or "")
        assert matched_target(own.name) == name
        assert (own.guard, own.rule, own.step_factor) == (plain.guard, plain.rule, 0.5)
        assert own.title == title(own.name) == f"{plain.title} at matched effort of {title(name)}"
        assert rule_of(own.name) == rule_of(f"{own.name} (keep=0.5)") == plain.rule
    for name in ("matched_srt", "matched_ttrl", "guard", "matched_"):
        assert matched_target(name) is None
    with pytest.raises(UserError, match="guard,treatment=permuted is no guard"):
        arm("matched: treatment=permuted")
    with pytest.raises(UserError, match="RENT has no label"):
        arm("matched_rent+guard")


def test_no_guard_ceiling_or_vote_is_a_rival_under_any_of_its_names():
    guards = ["guard", "guard,W=3", "guard (W=3)", "custom", "scope+custom", "own_rule+guard"]
    ceilings = ["truth", "truth,discount=0.9", "truth (kl_coef=0.1)"]
    votes = ["vote", "maj_at_n", "maj_at_n,discount=0.9", "maj_at_n (rule=x)", "maj_at_n+custom"]
    others = ["ttrl", "memory (discount=0.9)", "permuted", "matched_scope+guard", "own_rule"]
    assert all(map(is_guarded, guards)) and not any(map(is_guarded, others))
    assert rivals([*guards, *ceilings, *votes, *others]) == others


def test_a_variant_is_named_and_described_as_its_arm():
    assert title("guard (W=3)") == "TTRL-Guard (W=3)" and about("guard (W=3)") == about("guard")
    assert about("memory,discount=0.8") == about("memory")
    assert title("scope+custom (W=3)") == "SCOPE + custom guard (W=3)"
    for folder in ("a, b", "guard: w=3"):  # any name of a run's folder has a title
        assert (title(folder), unguarded(folder), replayed_target(folder)) == (folder, None, None)
