import pytest

from guard_core import GuardConfig
from lab.arms import ALL_ARMS, BASELINE, DEMO_ARMS, GUARD, MATCHED, arm, title
from lab.errors import UserError


def test_the_arms_of_every_comparison():
    assert DEMO_ARMS == ("ttrl", "guard", "matched", "frozen", "memory")
    assert ALL_ARMS[len(DEMO_ARMS) :] == ("memory_guard", "truth")
    assert ALL_ARMS[: len(DEMO_ARMS)] == DEMO_ARMS
    assert {BASELINE, GUARD, MATCHED} < set(DEMO_ARMS)
    assert len({arm(name).title for name in ALL_ARMS}) == len(ALL_ARMS)
    for name in ALL_ARMS:
        assert (arm(name).name, arm(name).title) == (name, title(name))


def test_what_each_arm_trains_on():
    off = GuardConfig.off()
    assert arm("ttrl").guard == arm("matched").guard == off
    assert arm("guard").guard == GuardConfig.paper()
    assert arm("release").guard == GuardConfig.release()
    for name in ("frozen", "memory"):
        guard = arm(name).guard
        assert guard.label_from == name
        assert not (guard.frs or guard.mps or guard.rcsu)
    both = arm("memory_guard").guard
    assert both.label_from == "memory"
    assert both.frs and both.mps and both.rcsu
    assert [name for name in ALL_ARMS if arm(name).labels == "truth"] == ["truth"]
    for name in ("frs", "mps", "rcsu"):
        assert arm(name).guard == GuardConfig.only(name)


def test_the_step_factor_is_kept():
    assert arm("matched", step_factor=0.8).step_factor == 0.8
    assert arm("ttrl").step_factor == 1.0


def test_unknown_arms():
    with pytest.raises(UserError, match="arm 'scope': unknown, use one of ttrl, guard"):
        arm("scope")
    assert title("scope") == "scope"


def test_random_skips_have_a_title_and_are_no_plain_arm():
    assert title("random_skip") == "TTRL at random skips"
    with pytest.raises(UserError, match="arm 'random_skip': unknown"):
        arm("random_skip")
