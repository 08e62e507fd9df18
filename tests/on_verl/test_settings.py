import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict
from run_verl import ENVIRONMENT, settings

from guard_core import GuardConfig
from lab.base.errors import UserError
from real.verl.plugin.trainer import GuardTrainer, SeededAgentLoop
from real.verl.plugin.votes import settings_of

PROCESS = {**os.environ, **ENVIRONMENT}


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", settings(Path("out")))


@pytest.fixture
def changed(composed):
    def change(**values):
        config = composed.copy()
        with open_dict(config):
            for name, value in values.items():
                OmegaConf.update(config, name.replace("__", "."), value, force_add=True)
        return config

    return change


def test_the_settings_are_the_trainers_own(changed):
    own = {"guard__rule": "srt", "guard__labels": "votes", "guard__step_factor": 0.5}
    config = changed(**own, guard__treatment="permuted")
    made, _ = settings_of(config)
    assert (made.n_votes, made.n_samples, made.batch_size, made.mini_batch) == (8, 4, 4, 1)
    assert made.guard == GuardConfig().set(
        W=2, tau_FR=0.1, tau_MR=0.3, theta_MR=0.2, p_skip=0.9, skip_share=0.5
    )
    assert (made.rule, made.step_factor, made.lr, made.temperature) == ("srt", 0.5, 3e-4, 1.0)
    assert made.treatment == "permuted"
    assert made.checkpoint_every == 0  # else `guard-train resume` would begin it anew


def test_verls_defaults_give_way_to_the_guards_parts(changed, tmp_path):
    config = changed(
        guard__step_factor=0.5,
        guard__out=str(tmp_path / "run"),
        actor_rollout_ref__rollout__agent__default_agent_loop="single_turn_agent",
    )
    GuardTrainer(config)
    assert config.actor_rollout_ref.actor.optim.lr == pytest.approx(1.5e-4)
    assert config.actor_rollout_ref.actor.loss_scale_factor == 22
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "guard_single_turn"
    assert config.reward.custom_reward_function.path == "pkg://real.verl.plugin.votes"


_SHARES = "actor_rollout_ref__actor__ulysses_sequence_parallel_size"
_KERNEL = "actor_rollout_ref__model__override_config__attn_implementation"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm__adv_estimator": "rloo"}, "adv_estimator = rloo: .*; set grpo"),
        ({"algorithm__norm_adv_by_std_in_grpo": False}, "advantage_scale=none"),
        ({"algorithm__use_kl_in_reward": True}, "use_kl_in_reward = True: "),
        ({"algorithm__filter_groups": {"enable": True}}, "filter_groups.enable = True: "),
        ({"algorithm__rollout_correction__bypass_mode": True}, "bypass_mode = True: "),
        ({"actor_rollout_ref__rollout__calculate_log_probs": False}, "stale weights"),
        ({"actor_rollout_ref__hybrid_engine": False}, "asynchronous modes"),
        ({"actor_rollout_ref__actor__policy_loss__loss_mode": "clip_cov"}, "clip_cov: "),
        ({"actor_rollout_ref__rollout__n": 9}, r"rollout\.n = 9: .* at most guard\.n_votes = 8"),
        *(
            ({f"actor_rollout_ref__{part}__ulysses_sequence_parallel_size": 2}, "own part of a row")
            for part in ("actor", "actor__fsdp_config")
        ),
        ({_SHARES: 2, _KERNEL: None}, "own part of a row"),
        ({"reward__reward_model__enable": True}, "reward_model.enable = True: "),
        ({"trainer__v1__sampler__sync_refill_failed_groups": True}, "failed_groups = True: "),
        ({"actor_rollout_ref__actor__shuffle": True}, "actor.shuffle = True: would mix"),
        ({"actor_rollout_ref__actor__loss_agg_mode": "token-sum"}, r"actor\.loss_agg_mode"),
        ({"guard__profil": "paper"}, "guard.profil: no such setting; there are .*, profile, "),
        ({"guard__profile": "papers"}, "guard.profile = 'papers': unknown"),
        ({"guard__W": 0}, "guard.W = 0: "),
        ({"guard__n_votes": "many"}, r"`int`, got `str` - at `\$\.guard\.n_votes`"),
        ({"actor_rollout_ref__rollout__temperature": 0}, r"^actor_rollout_ref\.rollout\.temper"),
        ({"guard__rule": "scope"}, "guard.rule = scope: works on step_logprob"),
        ({"guard__rule": "rent"}, "rule = rent: "),
        ({"guard__treatment": "replayed"}, "guard.treatment = replayed: names no run"),
        ({"guard__profile": None}, "guard.profile"),
        ({"guard__skip_share": 1.0}, "could skip all 4 problems"),
        ({"guard__min_share": 0.5}, "take guard.skip_by = mask"),
        ({"guard": 3}, "guard = 3: must be a section"),
    ],
)
def test_what_the_guard_cannot_stand_beside_is_refused(changed, values, message):
    with pytest.raises(UserError, match=message) as error:
        settings_of(changed(**values))
    assert "\n" not in str(error.value)


def test_gpus_share_a_row_under_flash_attention(changed):
    settings_of(changed(**{_SHARES: 2, _KERNEL: "flash_attention_2"}))


def test_another_trainer_is_refused_by_the_agent_loop(changed, monkeypatch):
    """verl's own trainers would run the votes unguarded."""
    monkeypatch.setattr(
        SeededAgentLoop.__mro__[1],
        "__init__",
        lambda self, config: vars(self).update(config=config),
    )
    for mode in ("sync", "colocate_async", "separate_async"):
        with pytest.raises(UserError, match=rf"trainer_mode = {mode}: .*; set ttrl_guard"):
            SeededAgentLoop(changed(trainer__v1__trainer_mode=mode))
    SeededAgentLoop(changed(trainer__v1__trainer_mode="ttrl_guard"))


def test_a_run_folder_that_exists_is_refused_before_anything_starts(changed, tmp_path):
    saved = tmp_path / "checkpoints" / "global_step_4"
    saved.mkdir(parents=True)
    (tmp_path / "run.json").touch()
    words = {"guard__out": str(tmp_path), "trainer__default_local_dir": str(saved.parent)}
    for more in ({}, {"trainer__resume_mode": "disable"}):
        with pytest.raises(UserError, match="already holds a run; choose another folder"):
            GuardTrainer(changed(**words, **more))
        # Now there is a latest checkpoint to go on from, which the second run must not.
        (saved.parent / "latest_checkpointed_iteration.txt").write_text("4")
    assert GuardTrainer(changed(**words)).resumed == saved
    given = {"trainer__resume_mode": "resume_path", "trainer__resume_from_path": str(saved)}
    assert GuardTrainer(changed(**words, **given)).resumed == saved


def test_verl_takes_the_trainer_for_a_synchronous_one():
    made = GuardTrainer.__new__(GuardTrainer)
    made.trainer_mode = "ttrl_guard"  # as verl's constructor does
    assert made.trainer_mode == "sync"


def test_verl_finds_the_plugin_and_why_it_is_not_loaded_is_on_stderr():
    """verl itself says nothing of a plugin that fails: of another version, then by an import."""
    code = """
import sys, verl
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls
print(get_trainer_cls("ttrl_guard").__module__)
class Broken:
    def find_spec(name, *_):
        if name == "real.verl.plugin.votes":
            raise ImportError("no such library here")
for verl.__version__ in ("0.9.0", "0.10.0", "0.9.4", "0.9.4"):
    del sys.modules["real.verl.plugin"]
    try:
        import real.verl.plugin
    except ImportError:
        sys.modules["real.verl.plugin"] = print("refused", verl.__version__)
    else:
        sys.meta_path.insert(0, Broken)
        for name in ("trainer", "votes"):
            del sys.modules[f"real.verl.plugin.{name}"]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=PROCESS)
    said = ["real.verl.plugin.trainer", *(f"refused 0.{n}" for n in ("9.0", "10.0", "9.4")), ""]
    assert done.stdout.split("\n") == said, done.stderr
    said = re.findall(r"ttrl_guard: not loaded: ImportError: verl (\S+): needs (.*?);", done.stderr)
    assert said == [(version, "0.9.1 or a later 0.9") for version in ("0.9.0", "0.10.0")]
    assert "ttrl_guard: not loaded: ImportError: no such library here" in done.stderr
