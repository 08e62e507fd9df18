import subprocess

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from run_verl import MODEL
from transformers import AutoTokenizer
from verl.utils.config import validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset

from real.problems.problem import Problem, ProblemSet
from real.settings.presets import NAMES
from real.verl import main
from real.verl.commands import write_problems

CLUSTERS = ([], ["--nodes", "8"], ["--gpus", "1", "--gpu-memory", "24"])


@pytest.mark.parametrize(("preset", "cluster"), list(zip(NAMES[::5], CLUSTERS, strict=True)))
def test_every_key_of_the_script_is_verl_s(preset, cluster, capsys):
    """Hydra refuses a key without + that verl lacks, and one with + that it has."""
    assert main(["config", "--preset", preset, *cluster]) == 0
    fake = "python() { printf '%s\\0' \"$@\"; }\n" + capsys.readouterr().out
    words = subprocess.run(["bash", "-c", fake], capture_output=True, text=True, check=True)
    overrides = words.stdout.split("\0")[2:-1]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides)
    validate_config(config=config, use_reference_policy=False, use_critic=False)
    assert config.guard.n_votes == 64 and config.actor_rollout_ref.rollout.n == 32
    assert config.actor_rollout_ref.actor.clip_ratio_c == 1e6
    kernel = "actor_rollout_ref.model.override_config.attn_implementation"
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "flash_attention_2"
    added = {word.split("=")[0] for word in overrides if word[0] == "+"}
    assert added == {f"+{kernel}", *(f"+guard.{name}" for name in config.guard)}


def test_verl_reads_the_problems_with_their_index(tmp_path):
    problems = [Problem(f"p{i}", f"{i} + {i}?", None if i == 2 else str(2 * i)) for i in range(3)]
    write_problems(tmp_path / "sums.parquet", [ProblemSet("sums", problems)], " Box it.")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    settings = {"filter_overlong_prompts": False, "cache_dir": str(tmp_path)}
    read = RLHFDataset(str(tmp_path / "sums.parquet"), tokenizer, OmegaConf.create(settings))
    assert [read[i]["index"] for i in range(3)] == [0, 1, 2]
    assert read[1]["raw_prompt"] == [{"role": "user", "content": "1 + 1? Box it."}]
    truths = [read[i]["reward_model"]["ground_truth"] for i in range(3)]
    assert truths == ["0", "2", None]
