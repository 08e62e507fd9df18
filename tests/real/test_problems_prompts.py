"""From problems to tokens: chat templates, plain text, suffixes, and what is said about them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_models import make_tokenizer, save_model

from lab.errors import UserError
from lab.trace.manifest import Manifest
from lab.trace.store import RunFolder
from lab.trace.trace import load
from real.cli import _tell, main
from real.compare.arms import ArmResult, ComparedArms
from real.model.policy import Policy, load_policy
from real.problems import Problem, ProblemSet, Turn
from real.problems.problem import PromptSet
from real.problems.prompts import build_prompts, encode
from real.problems.templates import FIXED_DATE
from real.settings.config import BOX_REQUEST, TrainConfig

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
DATED = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%Y') %}{% endif %}"
    "{{ date_string }}: " + CHAT
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    + CHAT
)
SYSTEM = Problem("s", "1+1?", "2", (Turn("system", "Be brief."),))


tokenizer = partial(make_tokenizer, model_max_length=128)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("chat") / "chat", chat_template=CHAT)


def prompts(folder: Path, *problems: Problem, **changes: Any) -> PromptSet:
    config = TrainConfig(
        model=str(folder), problems="p.json", max_response_tokens=8, **changes
    ).settled()
    return build_prompts(ProblemSet("p", list(problems)), config, policy(folder))


def policy(folder: Path) -> Policy:
    return load_policy(folder, "cpu")


def text(folder: Path, problem: Problem, **changes: Any) -> str:
    found = prompts(folder, problem, **changes)
    return policy(folder).tokenizer.decode(found.tokens[0]).replace(" ", "")


def squeezed(wanted: str) -> str:
    return wanted.replace(" ", "")


def test_chats_are_put_into_the_template(chat: Path):
    assert text(chat, SYSTEM, prompt_suffix="!") == "<system>Bebrief.<user>1+1?!<bot>"
    several = Problem("m", "now?", None, (Turn("user", "hi"), Turn("assistant", "yes")))
    assert text(chat, several, prompt_suffix="") == "<user>hi<assistant>yes<user>now?<bot>"


def test_base_models_get_plain_text_and_it_is_said(base: Path):
    found = prompts(base, SYSTEM, prompt_suffix="!")
    assert found.notices == (
        "the tokenizer has no chat template: prompts are plain text, as for a base model "
        "(--chat-template require refuses such a model, off accepts it silently)",
    )
    assert text(base, SYSTEM, prompt_suffix="!") == "Bebrief.\n\n1+1?!"


def test_templates_can_be_required_or_switched_off(base: Path, chat: Path):
    with pytest.raises(UserError, match="chat_template = 'require': the model's tokenizer has no"):
        prompts(base, SYSTEM, chat_template="require")
    assert not prompts(base, SYSTEM, chat_template="off").notices
    assert not prompts(chat, SYSTEM, chat_template="require").notices
    assert text(chat, SYSTEM, chat_template="off", prompt_suffix="") == "Bebrief.\n\n1+1?"


def test_prompts_do_not_depend_on_the_day():
    """Llama 3.2's template writes today's date: a resumed run would see other prompts."""
    ids = encode(tokenizer(DATED), SYSTEM, "", in_template=True)
    written = tokenizer().decode(ids).replace(" ", "")
    assert written.startswith(squeezed(FIXED_DATE) + ":<system>")


def test_a_template_that_refuses_the_messages_names_the_problem():
    with pytest.raises(UserError, match=r"problem 's': .* refuses its messages \(no system role"):
        encode(tokenizer(NO_SYSTEM), SYSTEM, "", in_template=True)
    plain = Problem("p", "1+1?", None)
    assert encode(tokenizer(NO_SYSTEM), plain, "", in_template=True)


def test_who_asks_for_a_box_is_not_asked_again(base: Path):
    asks = Problem("a", "1+1? Answer in \\boxed{}.", "2")
    plain = Problem("b", "1+2?", "3")
    found = prompts(base, asks, plain, chat_template="off")
    assert found.notices == ("1 prompts ask for a boxed answer themselves and got no suffix",)
    written = policy(base).tokenizer.decode(found.tokens[0]).replace(" ", "")
    assert written == squeezed(asks.prompt)
    assert text(base, plain, chat_template="off") == squeezed(plain.prompt + BOX_REQUEST)
    # A suffix that was given is put behind every prompt.
    assert text(base, asks, chat_template="off", prompt_suffix="!").endswith("{}.!")


def test_a_much_smaller_tokenizer_is_said(tmp_path: Path):
    folder = save_model(tmp_path / "model", spare=97)
    notices = prompts(folder, SYSTEM, chat_template="off").notices
    assert notices == (
        "the tokenizer has 103 tokens, the model 200; check that it is the model's own",
    )
    padded = save_model(tmp_path / "padded", spare=1)
    assert not prompts(padded, SYSTEM, chat_template="off").notices


@pytest.mark.parametrize("in_template", [False, True])
def test_overlong_prompts_are_counted_here_not_warned_of_by_the_library(in_template: bool):
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        long = Problem("l", "x" * 200, None)
        assert len(encode(tokenizer(CHAT), long, "", in_template)) >= 200
        assert not heard
        tokenizer()("x" * 200)
        assert "longer than the specified maximum" in heard[0]  # so the test can hear
    finally:
        logger.removeHandler(handler)


def test_a_prompt_without_tokens_is_refused():
    empty = replace(SYSTEM, prompt="", before=())
    with pytest.raises(UserError, match="problem 's': the tokenizer makes no tokens"):
        encode(tokenizer(), empty, "", in_template=False)


def run(folder: Path, base: Path, *words: str) -> int:
    rows = [
        {"question": "1+1?", "target": "2"},
        {"question": "x" * 400, "target": "0"},
        {"question": "1+2?", "target": "3"},
    ]
    (folder / "set.json").write_text(json.dumps(rows))
    given = ["run", "--model", str(base), "--problems", str(folder / "set.json"), "--quiet"]
    given += ["--out", str(folder / "run"), "--max-response-tokens", "4", "--n-votes", "4"]
    given += ["--n-samples", "2", "--epochs", "1", "--threads", "1", "--max-prompt-tokens", "300"]
    return main([*given, "--save-model", "False", *words])


def test_what_was_found_is_said_and_written_down(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert run(tmp_path, base) == 0
    said = capfd.readouterr()
    heard = [line for line in said.err.splitlines() if line.startswith("guard-train: notice: ")]
    assert len(heard) == 2 and len(said.err.splitlines()) == 2, said.err
    assert "no chat template" in heard[0] and "left out: 1 overlong prompts" in heard[1]
    assert "left out" not in said.out
    extra = load(tmp_path / "run").run.extra
    assert extra["notices"] == [line.removeprefix("guard-train: notice: ") for line in heard]
    assert extra["problem_fields"] == {"prompt": "question", "answer": "target"}
    assert extra["problem_fields_found"] == ["prompt", "answer"]
    assert len(extra["prompts_left_out"]) == 1 and len(extra["problem_ids"]) == 2
    assert not set(extra["prompts_left_out"]) & set(extra["problem_ids"])
    assert len(extra["problems_sha256"]) == 64


def test_a_comparison_says_each_thing_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for seed in (0, 1):
        extra = {"notices": ["no chat template", f"seed {seed} alone"]}
        manifest = Manifest.new(
            "real", "ttrl", "TTRL", n_problems=1, n_votes=4, config={}, seeds=[seed], extra=extra
        )
        with RunFolder.create(tmp_path / "ttrl" / f"seed-{seed}", manifest):
            pass
    _tell(ComparedArms(tmp_path, [ArmResult("ttrl", "TTRL", [0, 1], [0.5, 0.5], [0.6, 0.6])]))
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"guard-train: notice: {line}"
        for line in ("no chat template", "seed 0 alone", "seed 1 alone")
    ]
    assert said.out.startswith("TTRL: pass@1 0.500 -> 0.600")


def test_fields_are_options(base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    words = ["--fields.prompt", "question", "--fields.answer", ""]
    assert run(tmp_path, base, *words) == 0
    trace = load(tmp_path / "run")
    assert trace.run.extra["problem_fields"] == {"prompt": "question"}
    assert "no true answers: accuracy was not measured" in capfd.readouterr().out
    assert trace.run.config["fields"] == {"prompt": "question", "answer": "", "id": None}
