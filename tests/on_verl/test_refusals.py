"""What the plugin refuses beside wrong settings: other trainers and old folders."""

import subprocess
from contextlib import redirect_stdout
from io import StringIO

import pytest
from hydra import compose, initialize_config_module
from omegaconf import open_dict

from lab.base.errors import UserError
from real.other_trainers import GuardedRun
from real.verl import main
from real.verl.plugin.trainer import GuardTrainer, SeededAgentLoop
from real.verl.plugin.votes import settings_of


@pytest.fixture(scope="module")
def cell():
    """verl's configuration from the script of a cell."""
    with redirect_stdout(StringIO()) as script:
        assert main(("config", "--preset", "qwen2.5-7b/math500")) == 0
    fake = "python() { printf '%s\\0' \"$@\"; }\n" + script.getvalue()
    done = subprocess.run(["bash", "-c", fake], capture_output=True, text=True, check=True)
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", done.stdout.split("\0")[2:-1])


@pytest.fixture
def composed(cell):
    """The same with further words."""

    def made(*more):
        config = cell.copy()
        with open_dict(config):
            config.merge_with_dotlist(list(more))
        return config

    return made


def test_another_trainer_is_refused_by_the_agent_loop(composed, monkeypatch):
    """verl's own trainers would run the votes unguarded."""
    monkeypatch.setattr(
        SeededAgentLoop.__mro__[1],
        "__init__",
        lambda self, config: vars(self).update(config=config),
    )
    for mode in ("sync", "colocate_async", "separate_async"):
        with pytest.raises(UserError, match=rf"trainer_mode = {mode}: .*; set ttrl_guard"):
            SeededAgentLoop(composed(f"trainer.v1.trainer_mode={mode}"))
    SeededAgentLoop(composed())


def test_a_run_folder_that_exists_is_refused_before_anything_starts(composed, tmp_path):
    saved = tmp_path / "checkpoints" / "global_step_4"
    saved.mkdir(parents=True)
    (tmp_path / "run.json").touch()
    words = f"guard.out={tmp_path}", f"trainer.default_local_dir={saved.parent}"
    for more in ((), ("trainer.resume_mode=disable",)):
        with pytest.raises(UserError, match="already holds a run; choose another folder"):
            GuardTrainer(composed(*words, *more))
        # Now there is a latest checkpoint to go on from, which the second run must not.
        (saved.parent / "latest_checkpointed_iteration.txt").write_text("4")
    assert GuardTrainer(composed(*words)).resumed == saved
    given = "trainer.resume_mode=resume_path", f"trainer.resume_from_path={saved}"
    assert GuardTrainer(composed(*words, *given)).resumed == saved


def test_a_checkpoint_without_guard_is_refused(composed, tmp_path):
    run = GuardedRun(settings_of(composed())[0], [0, 1], [None, None])
    with pytest.raises(UserError, match="guard: missing"):
        run.load(tmp_path)
