"""The page on rules: its example runs as it stands, its table has every rule."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guard_histories import DOUBLE, SINGLE, Library

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


def test_the_example_is_short_and_complete(example: dict[str, Any]) -> None:
    (block,) = BLOCKS
    assert len(block.splitlines()) < 50
    assert RULES["top_two"] is example["TopTwo"]
    assert make_rule("top_two") == example["TopTwo"](second=0.5)
    with pytest.raises(ConfigError, match="rule top_two: no setting 'third'; it has second"):
        make_rule("top_two", {"third": 1})


def test_the_example_does_what_its_comments_say(example: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("library", [*DOUBLE, *SINGLE], ids=lambda library: library.name)
def test_the_example_runs_in_every_library(example: dict[str, Any], library: Library) -> None:
    answers = library.ints(example["answers"])
    votes = Votes.from_answers(answers, n_samples=4, n_answers=3)
    seen = Observations(votes=votes, draws=library.floats(np.zeros((2, 0))), answers=answers)
    rewards = example["rule"].pay(seen, library.ints([0, 2]))
    assert rewards.dtype == library.real
    assert np.asarray(rewards).tolist() == example["rewards"].tolist()


def test_the_table_has_every_rule() -> None:
    table = table_of_the_page()
    head, rule, *rows = table.on_page_markdown("before\nRULES\nafter").split("\n")[1:-1]
    assert len(rows) == len(RULES)
    columns = len(re.findall(r"(?<!\\)\|", head))
    assert columns == 8
    for line in (rule, *rows):
        assert len(re.findall(r"(?<!\\)\|", line)) == columns, line
    for row, (name, kind) in zip(rows, RULES.items(), strict=True):
        assert row.startswith(f"| `{name}` | {kind.title} | ")
        assert row.removesuffix(" |").endswith((".", ":"))
    assert "`threshold = 0.0`, `keep = 1.0`" in table.rules_table()
    assert table.on_page_markdown("no RULES here") == "no RULES here"
    assert "RULES" in PAGE.split("\n")


def test_the_page_names_what_exists() -> None:
    methods = re.findall(r"^\| `(\w+)` \|", PAGE.split("A rule overrides")[1], re.MULTILINE)
    assert methods == ["scores", "pay", "weigh", "is_direct", "n_draws", "questions", "check"]
    assert all(callable(getattr(Rule, method)) for method in methods)
    for path in re.findall(r"`(tests/\S+\.py)`", PAGE):
        assert (ROOT / path).exists()


def table_of_the_page() -> Any:
    path = ROOT / "docs" / "tools" / "rules_table.py"
    spec = importlib.util.spec_from_file_location("rules_table", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
