import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from real.problems.problem import Problem, ProblemSet, Turn
from real.settings.groups import BOX_REQUEST
from real.settings.presets import NAMES, preset
from real.verl import main
from real.verl.commands import write_problems

ROWS = [
    {"prompt": "What is 2 + 2?", "answer": "4", "id": "add"},
    {"prompt": "Give \\boxed{x}.", "answer": "x", "id": "box"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sums.json"
    path.write_text(json.dumps(ROWS))
    return path


def test_problems_have_one_index_through_all_sets(file, tmp_path, capsys):
    out = tmp_path / "both.parquet"
    assert main(["problems", str(file), str(file), "--out", str(out)]) == 0
    assert "4 problems, extra_info.index 0 to 3" in capsys.readouterr().out
    rows = pq.read_table(out).to_pylist()
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
    assert [row["extra_info"]["id"] for row in rows] == ["add", "box", "add", "box"]
    assert rows[0] == {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": ROWS[0]["prompt"] + BOX_REQUEST}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 0, "id": "add"},
    }
    # A prompt that asks for a box itself gets no suffix, as under guard-train.
    assert rows[1]["prompt"][0]["content"] == ROWS[1]["prompt"]


def test_messages_and_missing_answers_are_kept(tmp_path):
    turns = (Turn("system", "Be brief."), Turn("user", "Hi"), Turn("assistant", "Hello"))
    chat = ProblemSet("chat", [Problem("a", "1 + 1?", None, turns)])
    for name, prompt, first in (("own", None, "Be brief."), ("other", "Be long.", "Be long.")):
        write_problems(tmp_path / f"{name}.parquet", [chat], " Box it.", prompt)
        (row,) = pq.read_table(tmp_path / f"{name}.parquet").to_pylist()
        said = [(turn["role"], turn["content"]) for turn in row["prompt"]]
        middle = [("user", "Hi"), ("assistant", "Hello")]
        assert said == [("system", first), *middle, ("user", "1 + 1? Box it.")]
        assert row["reward_model"]["ground_truth"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["problems", "sums.json", "--out", "sums.json"], "sums.json: verl reads Parquet"),
        (["problems", "sums.json", "--out", "old.parquet"], "old.parquet: exists"),
        (["problems", "sums.json", "--out", "no/a.parquet"], "its folder does not exist"),
        (["problems", "--out", "a.parquet"], "missing: SOURCES; see guard-verl problems --help"),
        (["problems", "none.json", "--out", "a.parquet"], "none.json: cannot be read"),
        (["config", "--preset", "gpt/aime24"], "preset = 'gpt/aime24': unknown"),
        *(
            (["config", "--preset", "qwen3-4b/amc", *words.split()], message)
            for words, message in {
                "--arm x": "arm 'x': unknown",
                "--arm matched": "needs --step-factor, which the command compare finds",
                "--arm early_stop": "guard.brake = 0: verl",
                "--arm averaged": "ema_decay = 0.95: verl",
                "--arm scope": "verl gives votes alone",
                "--arm replayed": "guard.treatment = replayed: names no run; give the folder",
                "--out .": "is not empty; choose another",
                "--gpus 7": "cannot be dealt evenly to 7 GPUs; take a smaller power of two",
            }.items()
        ),
    ],
)
def test_bad_input_is_one_line(words, message, file, monkeypatch, capsys):
    monkeypatch.chdir(file.parent)
    Path("old.parquet").write_bytes(b"kept")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert Path("old.parquet").read_bytes() == b"kept"
    assert sorted(path.name for path in file.parent.iterdir()) == ["old.parquet", "sums.json"]


def run_of(script, flash=False):
    """Run a script with a python that prints its words, with or without flash attention."""
    probe = f'[ "$1" = -c ] && {{ {str(flash).lower()}; return; }}'
    fake = f"python() {{ {probe}; printf '%s\\0' \"$@\"; }}\n"
    return subprocess.run(["bash", "-c", fake + script], text=True, capture_output=True)


def words_of(script, flash=False):
    """Return the words that the script gives to verl."""
    words = run_of(script, flash).stdout.split("\0")[:-1]
    assert words[:2] == ["-m", "verl.trainer.main_ppo"]
    return words[2:]


KERNEL = "+actor_rollout_ref.model.override_config.attn_implementation"


def test_gpus_that_share_a_row_need_flash_attention(capsys):
    for nodes in ("8", "16"):
        ended = run_of(script_of(capsys, "--preset", "qwen2.5-7b/math500", "--nodes", nodes))
        assert ended.returncode == 2 and not ended.stdout
        assert ended.stderr.startswith("flash_attn: not installed") and "32 GPUs" in ended.stderr


def script_of(capsys, *words):
    assert main(["config", *words]) == 0
    return capsys.readouterr().out


def test_the_script_counts_the_problems_of_the_file(tmp_path, capsys):
    file = tmp_path / "own.parquet"
    words = ("--preset", "qwen2.5-7b/math500", "--problems", str(file))
    assert "trainer.save_freq=62\n" in script_of(capsys, *words)  # not made yet: the preset's
    for n in (7, 83):
        file.unlink(missing_ok=True)
        own = [Problem(f"p{i}", f"{i} + {i}?", "1") for i in range(n)]
        write_problems(file, [ProblemSet("own", own)], "")
        if n == 7:
            assert main(["config", *words]) == 2
            assert ": 7 problems are no batch of 8; give as many\n" in capsys.readouterr().err
    script = script_of(capsys, *words)
    assert "trainer.save_freq=10\n" in script and "leaves 3 problems out" in script
    file.write_bytes(b"no Parquet")
    assert main(["config", *words]) == 2
    assert "own.parquet: cannot be read as Parquet (" in capsys.readouterr().err


@pytest.mark.parametrize("name", [NAMES[0], NAMES[5], NAMES[-1]])
def test_the_script_has_the_preset_s_values(name, capsys):
    script = script_of(capsys, "--preset", name, "--nodes", "2", "--seed", "3")
    settings = dict(word.split("=", 1) for word in words_of(script))
    config = preset(name, "somewhere")
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    assert int(settings["+guard.n_votes"]) == config.n_votes
    assert int(settings[f"{rollout}.n"]) == config.n_samples
    assert int(settings["trainer.total_epochs"]) == config.epochs
    assert float(settings[f"{actor}.optim.lr"]) == config.lr
    assert float(settings[f"{rollout}.val_kwargs.top_p"]) == config.eval_top_p
    assert settings["trainer.test_freq"] == ("62" if "math500" in name else "5")  # 62: an epoch
    assert settings[f"{actor}.loss_agg_mode"] == "token-mean"
    assert settings[f"{actor}.use_kl_loss"] == "False"
    assert settings[KERNEL] == "sdpa"
    assert settings["+guard.seed"] == settings["data.seed"] == "3"
    assert settings["trainer.default_local_dir"] == str(Path("runs/verl/checkpoints").absolute())
    assert "RAY_ADDRESS=auto python -m" in script


@pytest.mark.parametrize(
    ("arm", "guard"),
    [
        ("guard", ["profile=paper"]),
        ("ttrl", ["profile=off"]),
        ("memory_guard", ["profile=paper", "label_from=memory"]),
        ("recommended", ["profile=recommended"]),
        ("truth", ["profile=off", "labels=truth"]),
        ("srt", ["profile=off", "rule=srt"]),
        ("matched --step-factor 0.8123456789", ["profile=off", "step_factor=0.8123456789"]),
        ("permuted", ["profile=paper", "treatment=permuted"]),
        ("frs,treatment=/a", ["profile=off", "frs=True", "treatment=/a"]),
    ],
)
def test_an_arm_is_a_profile_and_what_differs_from_it(arm, guard, capsys):
    words = words_of(script_of(capsys, "--preset", "qwen3-4b/amc", "--arm", *arm.split()))
    own = [word.removeprefix("+guard.") for word in words if word.startswith("+guard.")]
    assert [word for word in own if word.split("=")[0] not in ("seed", "out", "n_votes")] == guard


@pytest.mark.parametrize(
    ("name", "words", "sizes"),
    [
        ("qwen2.5-7b", "", ("1", "1", "False")),
        ("qwen2.5-7b", "--nodes 8", ("2", "1", "False")),
        ("qwen2.5-7b", "--gpu-memory 24", ("1", "4", "True")),
        ("qwen2.5-7b", "--gpus 1", ("1", "1", "True")),
        # One sequence of all its 131,072 positions has 14 GiB of keys and values.
        ("llama-3.2-3b", "--gpu-memory 40", ("1", "2", "False")),
        ("llama-3.2-3b", "--gpu-memory 24", ("1", "4", "False")),
        # verl refuses to deal 4 or 8 heads of keys to 7 or 3 GPUs, once it has taken all of them.
        ("qwen2.5-7b", "--nodes 7", ("28", "1", "False")),
        ("llama-3.2-3b", "--nodes 3", ("24", "1", "False")),
    ],
)
def test_sizes_follow_the_cluster(name, words, sizes, capsys):
    script = script_of(capsys, "--preset", f"{name}/math500", *words.split())
    settings = dict(word.split("=", 1) for word in words_of(script, flash=True))
    assert settings[KERNEL] == "flash_attention_2"
    keys = ("actor.ulysses_sequence_parallel_size", "rollout.tensor_model_parallel_size")
    keys += ("actor.fsdp_config.param_offload",)
    assert tuple(settings[f"actor_rollout_ref.{key}"] for key in keys) == sizes
    assert ("RAY_ADDRESS" in script) == ("--nodes" in words)


def test_the_script_of_a_run_that_has_a_checkpoint_can_be_printed_again(tmp_path, capsys):
    words = ["config", "--preset", "qwen2.5-7b/amc", "--out", str(tmp_path / "run")]
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "run.json").touch()
    assert main(words) == 2
    assert "run: already holds a run; choose another folder" in capsys.readouterr().err
    (tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("5")
    assert main(words) == 0


def test_names_with_spaces_and_further_settings_reach_verl(capsys):
    words = "--preset", "qwen2.5-7b/amc", "--out", "/my runs/it's"
    script = script_of(capsys, *words, "--arm", "guard,treatment=/my $runs/a")
    assert "+guard.out='/my runs/it\\'s'" in words_of(script)
    assert "+guard.treatment='/my $runs/a'" in words_of(script)
    shell = ["bash", "-c", f'python() {{ echo "${{@: -1}}"; }}\n{script}', "cell.sh", "a.b=1"]
    assert subprocess.check_output(shell, text=True) == "a.b=1\n"
