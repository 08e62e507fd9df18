from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from rule_sights import labels, sight, top

from guard_core import ConfigError, Votes, group_advantages
from guard_core.rules import RULES, Observations, Rule, make_rule

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rules.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the page's Python blocks after they have run; `RULES` is as before."""
    # Set once, so that leaving the test takes away what the example adds.
    monkeypatch.setitem(RULES, "top_two", Rule)
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "rules.md", "exec", dont_inherit=True), names)
    return names


def test_the_example_is_short_and_complete(example: dict[str, Any]):
    assert RULES["top_two"] is example["TopTwo"]
    assert make_rule("top_two") == example["TopTwo"](second=0.5)
    with pytest.raises(ConfigError, match="rule top_two: no setting 'third'; it has second"):
        make_rule("top_two", {"third": 1})


def test_the_example_does_what_its_comments_say(example: dict[str, Any]):
    assert example["decision"].label.tolist() == [0, 2]
    assert example["rewards"].tolist() == [[1, 1, 0.25, 0], [1, 1, 1, 0]]
    # Rewards 1, 1, .25, 0: mean .5625, squares 2 * .4375^2 + .3125^2 + .5625^2 over 3.
    comment = [[0.85, 0.85, -0.61, -1.09], [0.5, 0.5, 0.5, -1.5]]
    assert example["streams"].majority.round(2).tolist() == comment
    assert example["streams"].drop.tolist() == [False, False]
    answers, config = example["answers"][:, :4], example["guard"].config
    plain, _ = group_advantages(answers, example["decision"], config)
    assert plain.round(2)[0].tolist() == [0.87, 0.87, -0.87, -0.87]


def test_the_page_names_what_exists():
    methods = re.findall(r"^\| `(\w+)` \|", PAGE.split("A rule overrides")[1], re.MULTILINE)
    assert methods == ["scores", "pay", "weigh", "is_direct", "n_draws", "questions", "check"]
    assert all(callable(getattr(Rule, method)) for method in methods)
    for path in re.findall(r"`(tests/\S+\.py)`", PAGE):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_a_source_and_an_example_that_holds(name: str):
    text = re.sub(r"\s+", " ", RULES[name].__doc__ or "")
    assert (RULES[name].__doc__ or "").split("\n")[0].endswith((".", ":"))  # a cell of the page
    assert re.search(r"https://arxiv\.org/abs/\d{4}\.\d{5}", text)
    (example,) = re.findall(r"Example: (.*)\.(?: Raises:| Attributes:|$)", text.strip())
    parts = {key: words for key, *words in (part.split() for part in example.split(";"))}
    answers = numbers(parts.pop("answers"))[None].astype(int)
    known = {f.name for f in fields(Observations)}
    shown = {key: numbers(parts.pop(key))[None] for key in [*parts] if key in known}
    for key in {"second", "verdicts"} & set(shown):
        shown[key] = shown[key].astype(int)
    if "similarity" in shown:
        shown["similarity"] = shown["similarity"].reshape(1, answers.size, answers.size)
    if "tool" in shown:
        shown["tool"] = shown["tool"] == 1
    want = {key: numbers(parts.pop(key)) for key in ("rewards", "weight") if key in parts}
    settings = {key: numbers(words)[0].item() for key, words in parts.items()}
    settings = {key: int(x) if key == "verifications" else x for key, x in settings.items()}
    most = max(int(answers.max()), *(int(shown[key].max()) for key in shown if key == "second"), 0)
    seen = Observations(
        votes=Votes.from_answers(answers, n_samples=answers.size, n_answers=most + 1),
        answers=answers,
        **{"draws": np.zeros((1, 0)), **shown},
    )
    rule = make_rule(name, settings)
    label = top(np.asarray(rule.scores(seen)))
    assert want
    if "rewards" in want:
        np.testing.assert_allclose(rule.pay(seen, label)[0], want["rewards"], atol=6e-5)
    if "weight" in want:
        assert rule.weigh(seen, label).tolist() == want["weight"].tolist()


def numbers(words: list[str]) -> np.ndarray:
    return np.array([-1.0 if word == "-" else float(word) for word in words])


SHOWN = sight(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("majority", {}, f"rule = 'majority': unknown, use one of {', '.join(RULES)}"),
        ("srt", {"treshold": 0.5}, "rule srt: no setting 'treshold'; it has threshold, keep"),
        ("ttrl", {"keep": 0.5}, "rule ttrl: no setting 'keep'; it has none"),
        ("srt", [("keep", 0.5)], "rule srt: settings must be a table, got [('keep', 0.5)]"),
        ("srt", {"threshold": float("nan")}, "srt.threshold = nan: must lie in [0, 1]"),
        ("ttcs", {"least": 0.9}, "ttcs.least = 0.9: must be at most most = 0.75"),
        ("scope", {"confidence": "raw"}, "scope.confidence = 'raw': must be one of logprob, rel"),
        ("t3rl", {"verified_weight": -5.0}, "t3rl.verified_weight = -5.0: must be at least 0"),
        ("coverrl", {"regenerations": -1}, "coverrl.regenerations = -1: must be at least 0"),
        ("rent", {"unparseable": 1.0}, "rent.unparseable = 1.0: must be at most 0"),
    ],
)
def test_a_wrong_name_or_setting_names_its_rule(name, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_rule(name, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Rule):
    """A rule of one's own with kinds of settings that no built-in one has."""

    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"

    words: tuple[str, ...] = ("a",)
    limit: float | None = None
    size: Literal[1, 2] = 1


class Nameless(Rule):
    """Somebody forgot the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread(Rule):
    """Its setting has a type that exists for type checkers alone."""

    name: ClassVar[str] = "unread"

    depth: Depth = 1  # type: ignore[name-defined]  # noqa: F821


def test_types_that_cannot_be_read():
    with pytest.raises(ConfigError, match=r"rule unread: .* \(name 'Depth' is not defined\)"):
        Unread()


def test_rules_of_ones_own():
    assert Named(limit=2.0, words=("b", "c")).words == ("b", "c")
    with pytest.raises(ConfigError, match=r"mine.size = 3: must be one of 1, 2"):
        Named(size=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rule Nameless: no setting 'k'; it has none"):
        Nameless.from_dict({"k": 1})
    with pytest.raises(NotImplementedError, match="mine asks no verifier"):
        Named().questions(SHOWN.seen(), labels(0))


@pytest.mark.parametrize("name", [name for name in RULES if RULES[name].needs])
def test_a_missing_observation_is_named(name):
    rule = make_rule(name)
    for need in rule.needs:
        missing = {"paraphrase": "second", "teacher": "second"}.get(need, str(need))
        seen = replace(SHOWN, **{missing: None}).seen()
        with pytest.raises(ValueError, match=f"^{missing}: the rule needs it and it was not obs"):
            rule.scores(seen)
            rule.pay(seen, labels(0, 0, 0, 0))
            rule.weigh(seen, labels(0, 0, 0, 0))


@pytest.mark.parametrize("name", ["scope", "random"])
def test_too_few_draws(name):
    rule = make_rule(name)
    n = rule.n_draws(8, 5)
    seen = replace(SHOWN, draws=SHOWN.draws[:, : n - 1]).seen()
    with pytest.raises(ValueError, match=f"draws: {n - 1} numbers, the rule takes {n}"):
        rule.pay(seen, labels(0, 0, 0, 0))


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("answers", np.zeros((4, 7)), "shape (4, 7), needs (4, 8)"),
        ("certainty", np.zeros((3, 8)), "shape (3, 8), needs (4, 8)"),
        ("tool", np.zeros((1, 8)), "shape (1, 8), needs (4, 8)"),
        ("similarity", np.zeros((4, 8, 8)), "shape (4, 8, 8), needs (4, 5, 5)"),
        ("draws", np.zeros((5, 8)), "shape (5, 8), needs (4, any)"),
        ("verdicts", np.zeros((2, 4, 8)), "shape (2, 4, 8), needs (4, any)"),
        *(
            (name, np.full((4, 8), wrong), "answer ids must lie in -1..3; raise n_answers = 4")
            for name in ("answers", "second")
            for wrong in (-2, 4)
        ),
    ],
)
def test_shapes_and_ids_that_no_vote_has_are_refused(name, wrong, message):
    seen = SHOWN.seen()
    with pytest.raises(ValueError, match=re.escape(f"{name}: {message}")):
        replace(seen, **{name: wrong})
