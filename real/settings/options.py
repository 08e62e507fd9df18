"""The settings that the options of `guard-train` start from: a preset, a file, an arm or a rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.cli import read_option, with_arm_options
from lab.settings import from_values, toml_values
from real.settings.config import TrainConfig
from real.settings.presets import NAMES, model_of, preset_config


def settings_of(argv: Sequence[str], with_model: bool = False) -> TrainConfig:
    """Returns the settings of the preset, with those of the file and of the arm over them.

    Args:
        argv: the command line; `--config`, `--preset`, `--arm`, `--profile` and `--rule` are read,
            and the options that these settings are checked against: `--model`, `--problems`,
            `--tiny-task`, `--tiny-verifies`.
        with_model: name the preset's model where none is given.

    Raises:
        UserError: a file cannot be read, or a setting is wrong.
    """
    path, name = read_option(argv, "--config"), read_option(argv, "--preset")
    values = with_arm_options(argv, {} if path is None else toml_values(Path(path)))
    # Read before the other options: problems without a model are refused, and rules without a
    # judge.
    for setting in ("model", "problems", "tiny_task"):
        given = read_option(argv, f"--{setting.replace('_', '-')}")
        if given is not None:
            values[setting] = given
    if "--tiny-verifies" in argv:
        values["tiny_verifies"] = True
    if name is not None:
        if with_model and name in NAMES:
            values.setdefault("model", model_of(name))
        return preset_config(name, values)
    return from_values(values, TrainConfig, path or "")


def with_values(argv: Sequence[str]) -> list[str]:
    """Return the words with a value behind `--save-model`, which may stand alone as a flag."""
    words: list[str] = []
    for word, following in zip(argv, [*argv, "--"][1:], strict=True):
        if word == "--no-save-model":
            words += ["--save-model", "False"]
        elif word == "--save-model" and following.startswith("--"):
            words += [word, "True"]
        else:
            words.append(word)
    return words
