"""The commands of the GPU guide, in its order, with stand-ins for what a CPU lacks.

Runs of the trainer are small ones by its own engine in one process; `torchrun` only parses its
words, and Ray, installations and servers are checked for what they are given.
"""

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from test_command_lines import PROGRAMS, ROOT, shell_lines, small, users_files
from torch.distributed.run import get_args_parser

from real.model.policy import load_policy

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
GPU_OPTIONS = {"--engine-tp", "--fsdp-size", "--engine"}
"""Options of several GPUs or of vLLM, each with one value."""
ON_A_CPU = ("--engine", "transformers", "--dtype", "float32", "--chat-template", "off")


def run(words):
    """Run a command of this project, as small as it goes."""
    program, *argv = small(words)
    if argv[0] in ("run", "compare"):
        places = [i for i, word in enumerate(argv) if word in GPU_OPTIONS]
        gone = {i + n for i in places for n in (0, 1)}
        kept = [w for i, w in enumerate(argv) if i not in gone and w != "wandb"]
        argv = [word.replace("/shared/", "shared/") for word in kept] + [*ON_A_CPU]
    assert PROGRAMS[program].main(argv) == 0, words


def torchrun(words):
    given = get_args_parser().parse_args(words[1:])
    assert given.module and given.training_script == "real"
    if given.training_script_args[0] == "run":
        run(["guard-train", *given.training_script_args])


def pip(words):
    for word in words[2:]:
        name, _, extras = word.partition("[")
        if name == ".":
            assert set(extras.rstrip("]").split(",")) <= EXTRAS.keys()
        else:
            assert Requirement(word).name in ("vllm", "verl")


def bash(words):
    """Run a script of verl with a python that prints its words."""
    script = f"python() {{ printf '%s\\n' \"$@\"; }}\n{Path(words[1]).read_text()}"
    shell = ["bash", "-c", script, *words[1:]]
    said = subprocess.check_output(shell, text=True).splitlines()
    assert said[1] == "verl.trainer.main_ppo" and said[-1] == (words[2:] or said)[-1]


def prove(words, monkeypatch):
    """Plan the sections, or stand in for their results on a GPU."""
    module = importlib.import_module("prove")

    def measured(names, folder, dry, _):
        assert names and {module.SECTIONS[name].part for name in names} == {words[3]}
        folder.mkdir(parents=True, exist_ok=True)
        row = {"name": "rate", "value": 0.004, "rate": "decode_overhead"}
        (folder / "results.jsonl").write_text(json.dumps({"dry": dry, "measures": [row]}))
        return 0

    monkeypatch.setattr(module, "run_sections", measured)
    assert module.main(words[2:]) == 0


CHECKS = {
    "torchrun": torchrun,
    "pip": pip,
    "bash": bash,
    "python3.11": lambda words: (sys.executable and words[1:3] == ["-m", "venv"]) or pytest.fail(),
    "ray": lambda words: words[1] == "start" or pytest.fail(),
    "tensorboard": lambda words: next(Path(words[2]).rglob("events.out.tfevents*")),
    "vllm": lambda words: load_policy(words[2], "cpu"),
    "lm_eval": lambda words: load_policy(words[4].removeprefix("pretrained="), "cpu"),
}


@pytest.mark.slow
def test_every_command_of_the_guide_runs_with_stand_ins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    users_files(tmp_path)
    rows = [{"id": str(i), "prompt": f"{i} * 5 = ?", "answer": str(5 * i)} for i in range(83)]
    (tmp_path / "path" / "to" / "sets" / "amc.json").write_text(json.dumps(rows))
    done = []
    for words in shell_lines(ROOT / "docs" / "gpu.md"):
        if words[:2] == ["guard-verl", "config"]:
            capsys.readouterr()
            run(words)
            Path("q7.sh").write_text(capsys.readouterr().out)
        elif words[0] == "guard-report" and "verl" in words[1]:
            run([word for word in words if word != "runs/verl-q7"])  # of a cluster
        elif words[0] == "python":
            prove(words, monkeypatch)
        elif words[0] in PROGRAMS:
            run(words)
        else:
            CHECKS[words[0]](words)
        done.append(words[0])
    assert {*CHECKS, *PROGRAMS} - {"guard-sim"} <= set(done)
