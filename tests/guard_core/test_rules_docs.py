"""The page on rules: its example runs as it stands, and it names what exists."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rule_sights import rewards_of, top

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
    assert example["rewards"].tolist() == [[1, 0.25, 0, 0], [0.25, 0, 1, 0]]
    # Rewards 1, 1, .25, 0: mean .5625, squares 2 * .4375^2 + .3125^2 + .5625^2 over 3.
    got, std = example["streams"].majority, (0.796875 / 3) ** 0.5
    want = [[0.4375 / std, 0.4375 / std, -0.3125 / std, -0.5625 / std], [0.5, 0.5, 0.5, -1.5]]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    comment = [[0.85, 0.85, -0.61, -1.09], [0.5, 0.5, 0.5, -1.5]]
    assert got.round(2).tolist() == comment
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
        np.testing.assert_allclose(rewards_of(rule, seen, label)[0], want["rewards"], atol=6e-5)
    if "weight" in want:
        assert rule.weigh(seen, label).tolist() == want["weight"].tolist()


def numbers(words: list[str]) -> np.ndarray:
    return np.array([-1.0 if word == "-" else float(word) for word in words])
