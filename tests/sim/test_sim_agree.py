"""`guard-sim agree`: short runs, settings that a policy lacks, and settings it cannot know."""

import json
from dataclasses import fields

import pandas as pd
import pytest
from measured_response import settings

from guard_core import GuardConfig
from lab.base.arms import arm
from lab.base.errors import UserError
from lab.base.settings import to_values
from real import TrainConfig
from sim import simulate
from sim.cli import main
from sim.studies.agree import check_settings

TINY = {"n_votes": 16, "n_samples": 8, "batch_size": 4, "mini_batch": 2, "epochs": 6, "lr": 0.02}
TINY |= {"temperature": 1.0, "eval_temperature": 1.0}


@pytest.fixture(scope="module")
def real(response_file, tmp_path_factory):
    """Folder with two runs of six epochs as if by the trainer: TTRL, and under a KL penalty."""
    folder = tmp_path_factory.mktemp("real")
    for name, kl_coef in (("ttrl", 0.0), ("kl", 0.3)):
        made = TrainConfig(guard=GuardConfig.off(), kl_coef=kl_coef, **TINY)
        shared = {"epochs": 6, "replicates": 1, "guard": GuardConfig.off(), "kl_coef": kl_coef}
        simulate(settings(response_file, **shared), folder / name, arm=arm(name))
        path = folder / name / "run.json"
        changes = {"world": "real", "config": to_values(made.settled()), "backend": "cpu"}
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_short_runs_and_penalties_are_compared_as_far_as_they_can_be(
    real, response_file, tmp_path, capsys
):
    data = ["--real", str(real), "--response", response_file, "--replicates", "2", "--quiet"]
    assert main(["agree", *data, "--out", str(tmp_path / "all")]) == 0
    shown = capsys.readouterr().out
    assert "left out: fates and r (fewer than 8 visits): ttrl at lr 0.02, kl at lr 0.02" in shown
    assert "left out: classical policies (kl_coef = 0.3): kl at lr 0.02" in shown
    assert max(map(len, shown.splitlines())) <= 100
    table = pd.read_csv(tmp_path / "all" / "agreement.csv")
    ttrl = table[table.arm == "ttrl"].set_index("prediction")
    policies = ["measured", "independent", "attractor"]
    assert ttrl.loc[policies, ["real", "predicted", "final", "curve"]].notna().all(axis=None)
    assert ttrl[["fates", "r"]].isna().all(axis=None)
    assert {*table[table.arm == "kl"].prediction} & {*policies} == {"measured"}


def test_every_setting_of_the_trainer_is_modelled_fixed_or_without_effect():
    values = to_values(TrainConfig().settled())
    check_settings(values, "real: here")
    assert values.keys() == {field.name for field in fields(TrainConfig)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "grpo"}, "here has loss = grpo, the measured policy only dapo"),
        ({"eval_top_p": 0.9}, "here has eval_top_p = 0.9, the measured policy only 1.0"),
        ({"rule": "intuitor"}, "rule = intuitor: rewards single responses"),
        ({"shape": "constant"}, "here has shape = constant, a setting that guard-sim"),
    ],
)
def test_a_setting_that_the_policy_lacks_or_does_not_know_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_settings(to_values(TrainConfig()) | changes, "here")
