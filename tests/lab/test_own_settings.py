import os
import re
from pathlib import Path

import pytest

from guard_core import GuardConfig
from guard_core.config import SCRIPTS
from lab.arm_settings import arm_of, with_arm
from lab.base.arms import (
    arm,
    for_cell,
    matched_target,
    replayed_target,
    title,
    unguarded,
    with_rule,
)
from lab.base.errors import UserError
from lab.cli import arms_of
from lab.study import check_arms, needs
from real.commands import CompareCommand as TrainCompare
from real.settings.config import TrainConfig
from real.settings.presets import NAMES
from sim.commands import Compare as SimCompare

INSTANT = "guard,flip_rate=instant,theta_MR=0.4"


def test_settings_behind_a_name_make_an_arm():
    made = arm("guard: theta_MR=.4, flip_rate=instant")
    assert made.name == INSTANT and arm(INSTANT) == made == arm(" ".join(INSTANT.split(",", 0)))
    assert made.guard == GuardConfig.paper().set(flip_rate="instant", theta_MR=0.4)
    assert made.title == title(INSTANT) == "TTRL-Guard (flip_rate = instant, theta_MR = 0.4)"
    assert re.fullmatch(r"[\w+,=.]+", made.name)  # a folder on every system
    assert (unguarded(INSTANT), matched_target(f"matched_{INSTANT}")) == ("ttrl", INSTANT)
    assert arm(f"matched_{INSTANT}").guard == GuardConfig.off()
    assert unguarded("guard,label_from=memory,W=3") == "ttrl,label_from=memory"
    assert with_rule("guard: W=3", "scope") == "scope+guard,W=3"
    assert dict(arm("memory: kl_coef=.05").settings) == {"kl_coef": 0.05}
    config = with_arm(TrainConfig(), made)
    assert arm_of(config, INSTANT) == made and arm_of(config).name == "custom"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("guard: w=3", "'w' is no setting of an arm; give some as 'guard: W=3, theta_MR=.5'"),
        ("guard: W=3, W=4", "'W' is there twice"),
        ("guard: W=x", "W = 'x': must be of type int"),
        ("guard: theta_MR=2", re.escape("theta_MR = 2.0: must lie in [0, 1]")),
        ("none: W=3", "arm 'none': unknown"),
        ("random: label_from=memory", "has no label"),
    ],
)
def test_wrong_settings_are_refused_by_name(name, message):
    with pytest.raises(UserError, match=message):
        arm(name)


def test_arms_of_a_settings_file(tmp_path):
    file = tmp_path / "arms.toml"
    table = '{arm = "guard", flip_rate = "instant", theta_MR = 0.4, mps = true}'
    file.write_text(f'arms = ["ttrl", {table}]')
    names, _ = arms_of(file, ["memory"])
    assert [arm(name).name for name in names] == ["ttrl", INSTANT.replace(",f", ",mps=True,f")]
    assert arms_of(None, ["memory"]) == (("memory",), {})
    for wrong in ('arms = "ttrl"', "arms = [1]", "arms = [{W = 3}]"):
        file.write_text(wrong)
        with pytest.raises(UserError, match="arms: give a list of names and of tables"):
            arms_of(file, [])


@pytest.mark.parametrize("command", [SimCompare, TrainCompare])
def test_a_settings_file_may_be_a_pipe(command):
    source, target = os.pipe()
    os.write(target, b'arms = ["memory"]\nseed = 3')
    os.close(target)
    made = command.defaults({"config": Path(f"/dev/fd/{source}")})
    os.close(source)
    assert made["arms"] == ("memory",) and made["settings"].seed == 3


def test_the_release_arm_takes_the_script_of_its_cell():
    assert set(NAMES) < set(SCRIPTS)
    for cell in SCRIPTS:
        made = arm(for_cell("guard_release", cell))
        assert made.guard == GuardConfig.release_scripts(cell)
    assert for_cell("guard_release: W=3", "llama-amc") == "guard_release,frs=False,W=3"
    assert for_cell("guard", "llama-amc") == "guard"
    names = [for_cell(n, "llama-amc") for n in ("ttrl", "guard_release", "matched_guard_release")]
    check_arms(names)  # a control stays that of the guard beside it
    assert needs(names[2]) == ("ttrl", names[1])


def test_controls_of_a_guard():
    assert arm("permuted: W=3").guard == GuardConfig.paper().set(W=3)
    assert dict(arm("permuted").settings) == {"treatment": "permuted"}
    assert replayed_target("replayed: W=3") == "guard,W=3"
    assert replayed_target("guard_release: treatment=replayed") == "guard_release"
    assert replayed_target("guard") is unguarded("guard_release,treatment=permuted") is None
    for name in ("permuted", "guard", "guard_release,treatment=permuted"):
        assert arm_of(with_arm(TrainConfig(), arm(name)), name) == arm(name)
    assert arm_of(with_arm(TrainConfig(), arm("permuted"))).name == "permuted"
