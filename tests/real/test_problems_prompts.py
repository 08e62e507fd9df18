import json
import logging
import shutil
from dataclasses import replace
from functools import cache, partial
from unittest.mock import Mock

import pytest
from small_models import make_tokenizer, save_model
from tokenizers.processors import TemplateProcessing

from lab.base.errors import UserError
from lab.study import Job
from lab.trace.manifest import Manifest
from lab.trace.trace import RunFolder, load
from real.__main__ import main
from real.compare import check_sources
from real.model.folder import check_folder, model_digests
from real.model.policy import load_policy
from real.problems import Problem, ProblemSet, Turn, fingerprint
from real.problems.prompts import FIXED_DATE, build_prompts, encode, prompt_tokens
from real.settings.config import TrainConfig
from real.settings.groups import BOX_REQUEST

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
SYSTEM = Problem("s", "1+1?", "2", (Turn("system", "Be brief."),))


tokenizer = partial(make_tokenizer, model_max_length=128)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("chat") / "chat", chat_template=CHAT)


policy_of = cache(partial(load_policy, device="cpu"))


def prompts(folder, *problems, policy=None, **changes):
    config = TrainConfig(
        model=str(folder), problems="p.json", max_response_tokens=8, **changes
    ).settled()
    return build_prompts(ProblemSet("p", list(problems)), config, policy or policy_of(folder))


def squeezed(wanted):
    return wanted.replace(" ", "")


def text(folder, problem, **changes):
    found = prompts(folder, problem, **changes)
    return squeezed(policy_of(folder).tokenizer.decode(found.tokens[0]))


def test_chats_are_put_into_the_template(chat):
    assert text(chat, SYSTEM, prompt_suffix="!") == "<system>Bebrief.<user>1+1?!<bot>"
    several = Problem("m", "now?", None, (Turn("user", "hi"), Turn("assistant", "yes")))
    assert text(chat, several, prompt_suffix="") == "<user>hi<assistant>yes<user>now?<bot>"


def test_templates_can_be_required_or_switched_off(base, chat):
    with pytest.raises(UserError, match="chat_template = 'require': the model's tokenizer has no"):
        prompts(base, SYSTEM, chat_template="require")
    assert not prompts(base, SYSTEM, chat_template="off").notices
    assert not prompts(chat, SYSTEM, chat_template="require").notices
    assert text(chat, SYSTEM, chat_template="off", prompt_suffix="") == "Bebrief.\n\n1+1?"


def test_messages_that_a_template_leaves_out_or_changes_are_told(tmp_path):
    template = CHAT.replace("in messages", "in messages if m.role != 'system'")
    template = template.replace("m.content", "m.content.split('</think>')[-1] | trim")
    folder = save_model(tmp_path / "model", chat_template=template)
    (notice,) = prompts(folder, SYSTEM, SYSTEM).notices
    assert "leaves out or changes the system message of problem 's'" in notice
    worked = Problem("w", " 1+1?\n", "2", (Turn("assistant", "<think>2</think>2"),))
    assert "the assistant message of problem 'w'" in prompts(folder, worked).notices[-1]
    assert not prompts(folder, Problem("p", " 1+1?\n", "2")).notices


def test_characters_that_the_tokenizer_lacks_are_told(base):
    asked = Problem("u", "√4 in Ünder?", "12")
    (notice,) = prompts(base, SYSTEM, asked, SYSTEM, chat_template="off").notices
    assert "lacks characters of 1 prompt: " in notice and "'u' without '√ü'" in notice


def test_added_tokens_may_lack_an_embedding_where_no_prompt_holds_one(tmp_path):
    """As in Gemma 3's text models; the padding token is another one."""
    folder = save_model(tmp_path / "model", spare=-1, extra=["<image>"])
    made = load_policy(folder, "cpu")
    assert made.pad_token_id == 1
    made.tokenizer.pad_token = "<image>"
    made.tokenizer.save_pretrained(folder)
    assert load_policy(folder, "cpu").pad_token_id == 2
    seen = Problem("i", "<image> 1+1?", "2")
    assert len(prompts(folder, SYSTEM).tokens) == 1
    with pytest.raises(UserError, match="problem 'i': its prompt holds '<image>', for which the m"):
        prompts(folder, SYSTEM, seen)
    config = TrainConfig(model=str(folder), problems="p.json", max_response_tokens=8)
    assert prompt_tokens(SYSTEM, config, made) and not prompt_tokens(seen, config, made)


def test_a_prompt_is_rendered_once(chat, monkeypatch):
    made = policy_of(chat).tokenizer
    rendered = Mock(side_effect=made.apply_chat_template)
    monkeypatch.setattr(made, "apply_chat_template", rendered)
    prompts(chat, SYSTEM, replace(SYSTEM, id="t"))
    assert rendered.call_count == 2 + 1  # and a chat that ends with a reply


def test_options_reach_the_template_and_others_are_refused(tmp_path):
    template = CHAT + "{% if not enable_thinking|default(true) %}<no>{% endif %}"
    folder = save_model(tmp_path / "thinks", chat_template=template)
    problem = Problem("a", "1+1?", "2")
    thinks, quiet = (
        prompts(folder, problem, prompt_suffix="", template_options=options).tokens[0]
        for options in ({}, {"enable_thinking": False})
    )
    assert quiet == thinks + make_tokenizer()("<no>")["input_ids"]
    with pytest.raises(UserError, match=r"template_options = thinking: .* does not read it"):
        prompts(folder, problem, template_options={"thinking": False})
    with pytest.raises(UserError, match=r"template_options = enable_thinking: .* no chat template"):
        prompts(folder, problem, chat_template="off", template_options={"enable_thinking": False})


def test_a_system_prompt_comes_first_and_replaces_that_of_the_file(chat, base):
    decode = make_tokenizer().decode
    thinks = replace(SYSTEM, before=(Turn("system", "Think."),))
    expected = decode(encode(make_tokenizer(CHAT), thinks, "", True)[1])
    for problem in (SYSTEM, replace(SYSTEM, before=())):
        found = prompts(chat, problem, prompt_suffix="", system_prompt="Think.").tokens[0]
        assert decode(found) == expected
    plain = prompts(base, SYSTEM, prompt_suffix="", system_prompt="Think.").tokens[0]
    assert plain == make_tokenizer()("Think.\n\n1+1?")["input_ids"]


def test_a_model_in_this_folder_has_its_name(base, monkeypatch):
    """Runs are compared by it."""
    monkeypatch.chdir(base)
    assert prompts(".", SYSTEM, policy=policy_of(base)).name == "p with base"


def test_who_asks_for_a_box_is_not_asked_again(base):
    asks = Problem("a", "1+1? Answer in \\boxed{}.", "2")
    plain = Problem("b", "1+2?", "3")
    found = prompts(base, asks, plain, chat_template="off")
    assert found.notices == ("no suffix behind 1 prompt, where a box is asked for already",)
    under = Problem("u", "1+1?", "2", (Turn("system", asks.prompt),))
    for system in (None, "Be brief.", asks.prompt):  # in place of one that asks, or asking
        assert text(base, under, chat_template="off", system_prompt=system).count("boxed") == 1
    assert text(base, asks, chat_template="off") == squeezed(asks.prompt)
    assert text(base, plain, chat_template="off") == squeezed(plain.prompt + BOX_REQUEST)
    # A suffix that was given is put behind every prompt.
    assert text(base, asks, chat_template="off", prompt_suffix="!").endswith("{}.!")


@pytest.mark.parametrize("in_template", [False, True])
def test_overlong_prompts_are_counted_here_not_warned_of_by_the_library(in_template, monkeypatch):
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("transformers")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])
    long = Problem("l", "x" * 200, None)
    assert len(encode(tokenizer(CHAT), long, "", in_template)[1]) >= 200
    assert not heard
    tokenizer()("x" * 200)
    assert "longer than the specified maximum" in heard[0]  # so the test can hear


def test_prompts_without_tokens_and_sets_of_overlong_ones_are_refused(base, tmp_path):
    with pytest.raises(UserError, match="all 1 prompts are longer than 5 tokens"):
        prompts(base, SYSTEM, max_prompt_tokens=5)
    short = save_model(tmp_path / "short", positions=10)
    with pytest.raises(UserError, match="all 1 prompts are longer than 2 tokens; lower max_resp"):
        prompts(short, SYSTEM)
    empty = replace(SYSTEM, prompt="", before=())
    with pytest.raises(UserError, match="problem 's': the tokenizer makes no tokens"):
        encode(tokenizer(), empty, "", in_template=False)


def test_what_was_found_is_said_and_written_down(base, tmp_path, capfd):
    pairs = {"1+1?": "2", "x" * 400: "0", "1+2?": "3"}
    rows = [{"question": question, "target": target} for question, target in pairs.items()]
    (tmp_path / "set.json").write_text(json.dumps(rows))
    words = ["run", "--model", str(base), "--problems", str(tmp_path / "set.json"), "--quiet"]
    words += ["--out", str(tmp_path / "run"), "--max-response-tokens", "4", "--n-votes", "4"]
    words += ["--max-unread", "1", "--n-samples", "2", "--epochs", "8", "--threads", "1"]
    words += ["--max-prompt-tokens", "300", "--save-model", "False"]
    assert main(words) == 0
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


def test_a_comparison_goes_on_with_the_content_that_its_runs_began_with(base, tmp_path):
    model = shutil.copytree(base, tmp_path / "model")
    config = TrainConfig(model=str(model), problems="set.json")
    problems = [Problem(str(i), f"1+{i}?", f"{1 + i}") for i in range(3)]
    extra = {"sources": {"model": model_digests(model)}, "prompts_left_out": ["2"]}
    extra["problems_sha256"] = fingerprint(problems[:2])
    manifest = Manifest.new("real", "ttrl", "", n_problems=2, n_votes=4, seeds=[0], extra=extra)
    RunFolder.create(tmp_path / "run", manifest).finish()
    job = Job("ttrl", config, tmp_path / "run")
    check_sources(job, ProblemSet("set", problems), model)
    for other in (problems[1:], problems[1::-1], [replace(problems[0], answer="7"), *problems[1:]]):
        with pytest.raises(UserError, match=r"run: the content has changed.*problems = 'set"):
            check_sources(job, ProblemSet("set", other), model)
    (model / "generation_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"model = '.*model' \(generation_config.json\); put"):
        check_sources(job, ProblemSet("set", problems), model)


DATED = (
    """{% if not date_string is defined %}{% set date_string = strftime_now('%Y') %}{% endif %}\
{{ date_string }}: """
    + CHAT
)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (DATED, f"{squeezed(FIXED_DATE)}:<system>"),  # Llama 3.2's
        ("{{ strftime_now('%d/%m/%Y %H:%M') }}: " + CHAT, "26/07/202400:00:<system>"),
        ("{% set d = strftime_now('%B %d, %Y') %}{{ d }}: " + CHAT, "July26,2024:<system>"),
    ],
)
def test_prompts_do_not_depend_on_the_clock(template, written):
    """A resumed run would see other prompts."""
    _, ids = encode(tokenizer(template), SYSTEM, "", in_template=True)
    assert tokenizer().decode(ids).replace(" ", "").startswith(written)


@pytest.mark.parametrize("form", ["$A <eos>", "<pad> $A <eos>", "<pad> $A <pad> <eos>", "$A"])
def test_end_tokens_that_a_tokenizer_puts_behind_are_cut_off_plain_prompts(form):
    made, specials = tokenizer(), [("<pad>", 1), ("<eos>", 2)]
    made.backend_tokenizer.post_processor = TemplateProcessing(form, None, specials)
    plain = Problem("p", "1+1?", None)
    bare = made("1+1?", add_special_tokens=False)["input_ids"]
    before = [1] if form.startswith("<pad>") else []
    assert encode(made, plain, "", in_template=False)[1] == [*before, *bare]
    # A prompt that names an end token itself keeps it.
    _, named = encode(made, replace(plain, prompt="1<eos>"), "", in_template=False)
    assert named[-1] == 2 and named.count(2) == 1


def test_a_turn_without_an_end_token_is_told(tmp_path):
    template = CHAT.replace("{{ m.content }}", "{{ m.content }}<turn>")
    folder = save_model(tmp_path / "turns", chat_template=template, extra=("<turn>",))
    (notice,) = prompts(folder, SYSTEM).notices
    assert "ends a turn with '<turn>', which is no end token" in notice
    assert "--stop '<turn>'" in notice
    policy = policy_of(folder)
    stop = policy.tokenizer.convert_tokens_to_ids("<turn>")
    assert not prompts(folder, SYSTEM, stop=("<turn>",)).notices
    assert not prompts(folder, SYSTEM, policy=replace(policy, eos_token_ids=(stop,))).notices


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 1/0 }}", "fails .ZeroDivisionError: division by zero"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "fails .RecursionError"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails .OverflowError: Range too big"),
        ("{{ messages.append(1) }}", "refuses its messages"),
        ("{{ raise_exception('no system role') }}", r"refuses its messages \(no system role"),
    ],
)
def test_a_template_that_fails_is_one_line(template, reason):
    with pytest.raises(UserError, match=rf"^problem 's': the chat template {reason}") as caught:
        encode(tokenizer(template), SYSTEM, "", in_template=True)
    assert "\n" not in str(caught.value) and "--chat-template off" in str(caught.value)


@pytest.mark.parametrize("given", ["folder", "folder/small.q8.gguf"])
def test_gguf_files_are_named(given, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "small.q8.gguf").touch()
    with pytest.raises(UserError, match=r"small.q8.gguf is a GGUF file, .* convert"):
        check_folder(tmp_path / given)
