import json
import os
import re
from fractions import Fraction
from pathlib import Path

import pytest
from flint import acb, fmpq

from real.answers import AnswerIds, canonical, classes, repeats
from real.answers.canonical import names_in
from real.answers.reader import read
from real.answers.values import key, value

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


@pytest.fixture(scope="module")
def problems():
    path = DATA / "math500.json"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip("math500.json is not next to this checkout")
    return json.loads(path.read_text(encoding="utf-8"))


def box(answer):
    return rf"Some steps, then a first guess \boxed{{0.123}}. Finally \boxed{{{answer}}}, I think."


def writings(answer):
    """Usual writings of a reference answer; `test_answers_equality` has those of other kinds."""
    text = canonical(answer)
    found = [answer, text, f"${answer}$", rf"\({answer}\)", f" {answer} ", rf"\boxed{{{answer}}}"]
    found += [f"{answer}.", rf"\displaystyle {answer}", rf"{answer}\,"]
    found += [answer.replace(r"\frac", command) for command in (r"\dfrac", r"\tfrac", r"\frac ")]
    tree = read(text)
    if tree.kind in ("num", "neg", "div", "mixed") and not names_in(tree):
        number = value(tree, {})
        near = Fraction(float(number.real)).limit_denominator(10**6)
        is_near = key(number) == key(acb(fmpq(near.numerator, near.denominator)))
        found += numbers(text, near) if is_near else []
    return [*found, *equations(answer, text, tree.kind)]


def numbers(text, number):
    top, bottom = number.numerator, number.denominator
    sign, size = ("-" if top < 0 else ""), abs(top)
    found = [rf"\frac{{{2 * top}}}{{{2 * bottom}}}", rf"{sign}\frac{{{3 * size}}}{{{3 * bottom}}}"]
    found += [rf"{text}^\circ", rf"{text}\%", rf"\${text}", f"{text} degrees"]
    found += [rf"{text} \text{{ cm}}^2", rf"{text} \mathrm{{cm}}", f"{text} units"]
    if bottom == 1:
        found += [f"{text}.0", f"{sign}0{size}", rf"\text{{{text}}}"]
        found += [f"{top:,}".replace(",", mark) for mark in (",", "{,}", r",\!", r"\,", " ")]
    elif size > bottom:
        whole, rest = divmod(size, bottom)
        found += [rf"{sign}{whole}\frac{{{rest}}}{{{bottom}}}", f"{sign}{whole} {rest}/{bottom}"]
    if bottom > 1 and 10**12 % bottom == 0:
        decimal = f"{float(number):.12f}".rstrip("0")
        found += [decimal, f"{decimal}0", decimal.replace("0.", ".", size < bottom)]
    return found


def equations(answer, text, kind):
    if "=" in answer or r"\in" in answer or re.fullmatch("[A-Za-z]+", text):
        return [answer.replace("=", " = ")]
    if kind in ("(]", "[)", "[]"):
        return [rf"x \in {text}", rf"x\in {answer}"]
    return [f"x={answer}", f"x = {answer}", rf"\theta = {answer}"] if "," not in text else []


def test_a_unanimous_correct_group_is_rewarded_on_every_problem(problems, equality):
    split, n_writings = [], 0
    for answer in (problem["answer"] for problem in problems):
        group = list(dict.fromkeys(writings(answer)))
        ids, truth_id = classes([box(text) for text in group], answer, equality)
        n_writings += len(group)
        if set(ids.tolist()) != {truth_id}:
            split.append((answer, [t for t, a in zip(group, ids, strict=True) if a != truth_id]))
    assert split == []
    assert len(problems) == 500
    assert n_writings > 6_000
    assert equality.given_up == []


def test_different_reference_answers_are_never_merged(problems, equality):
    """All pairs of the 500; two problems ask for -2 and 1, in either order."""
    answers = [problem["answer"] for problem in problems]
    answer_ids = AnswerIds([None], equality)
    ids = answer_ids.ids(0, [box(answer) for answer in answers]).tolist()
    merged = {
        (answer_ids.text(0, found), canonical(answer))
        for answer, found in zip(answers, ids, strict=True)
        if answer_ids.text(0, found) != canonical(answer)
    }
    assert merged == {("1, -2", "-2, 1")}


def test_hardly_a_reference_answer_is_a_formula_of_its_question(problems):
    found = [p["answer"] for p in problems if repeats(p["prompt"], [box(p["answer"])])]
    assert found == ["1+2i"]
