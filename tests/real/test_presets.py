import pytest

import real.verl
from guard_core import GuardConfig
from lab.base.errors import UserError
from real.commands import CompareCommand, RunCommand
from real.settings.presets import NAMES, preset, table
from real.tiny import problems_of

PAPER = {
    "batch_size": 8, "mini_batch": 1, "lr": 5e-7, "warmup_ratio": 0.03, "kl_coef": 0.0,
    "n_votes": 64, "n_samples": 32, "max_prompt_tokens": 1024, "max_response_tokens": 3072,
    "temperature": 0.6, "eval_samples": 4,
}  # fmt: skip
"""Table 4 of the paper, as far as the trainer's settings go."""


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_has_the_paper_s_numbers(name):
    config = preset(name, "somewhere")
    data = name.split("/")[1]
    assert config.problems == data and config.model == "somewhere"
    assert config.epochs == {"aime24": 60, "aime25": 60, "amc": 30, "math500": 30}[data]
    assert {key: getattr(config, key) for key in PAPER} == PAPER
    assert (config.eval_temperature, config.eval_top_p) == (0.6, 0.95)
    assert config.guard == GuardConfig.paper() and config.labels == "votes"
    # Nothing is left to be decided but what a preset cannot know.
    settled = config.settled()
    assert settled.n_problems is None and settled.prompt_suffix == config.prompt_suffix


def test_options_beat_the_file_and_the_file_beats_the_preset(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("epochs = 7\nn_votes = 48\n[guard]\nW = 7\n[fields]\nprompt = 'q'\n")
    given = {"preset": "llama-3.2-3b/aime24", "config": file, "model": "m"}
    for command in (RunCommand, CompareCommand):
        settings = command.defaults(given)["settings"]
        assert (settings.epochs, settings.n_votes, settings.n_samples) == (7, 48, 32)
        assert settings.guard.rates.W == 7 and settings.fields.prompt == "q"
        assert settings.problems == "aime24" and settings.model == "m"
    # A file's problems may get their model on the command line.
    file.write_text("problems = 'amc'\n")
    settings = RunCommand.defaults({"config": file, "model": "m"})["settings"]
    assert (settings.problems, settings.model) == ("amc", "m")
    with pytest.raises(UserError, match="problems = amc: needs a model"):
        RunCommand.defaults({"config": file})


def test_a_study_has_its_problems_arms_and_seed(capsys):
    name = "smollm2/multiplication"
    config = preset(name, model="model", lr=1e-5)
    problems, held_out = problems_of(config), problems_of(config, held_out=True)
    assert len(problems) == config.n_problems == 24 and len(held_out) == 12
    for problem in problems:
        one, other = map(int, problem.id.split("*"))
        assert problem.answer == str(one * other) and len(problem.before) == 3
    assert (config.lr, config.n_votes, config.dtype) == (1e-5, 16, "bfloat16")
    usual = CompareCommand.defaults({"preset": name, "model": "model"})
    assert (usual["arms"], usual["seeds"]) == (("ttrl", "guard", "memory"), (1,))
    assert "seeds" not in CompareCommand.defaults({})
    assert name in "\n".join(table())
    assert real.verl.main(["config", "--preset", name]) == 2
    assert "run it with guard-train" in capsys.readouterr().err
