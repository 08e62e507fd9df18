"""The reference answers of MATH-500 in every usual notation, with wrong answers."""

from __future__ import annotations

import json
import os
import re
from fractions import Fraction
from pathlib import Path

import pytest

from real.answers import AnswerIds, Equality, canonical, classes
from real.answers.equality import exact, form_of

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
TERM = re.compile(r"[+-]?[^+-]+")


@pytest.fixture(scope="module")
def answers() -> list[str]:
    path = DATA / "math500.json"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip("math500.json is not next to this checkout")
    return [problem["answer"] for problem in json.loads(path.read_text(encoding="utf-8"))]


def box(answer: str) -> str:
    return rf"Some steps, then a first guess \boxed{{0.123}}. Finally \boxed{{{answer}}}, I think."


def writings(answer: str) -> list[str]:
    """Usual writings of a reference answer, by what kind of answer it is."""
    text = canonical(answer)
    found = [answer, text, f"${answer}$", rf"\({answer}\)", f" {answer} ", rf"\boxed{{{answer}}}"]
    found += [f"{answer}.", rf"\displaystyle {answer}", rf"{answer}\,"]
    found += [answer.replace(r"\frac", command) for command in (r"\dfrac", r"\tfrac", r"\frac ")]
    number, form = exact(text), form_of(text)
    if number is not None:
        found += numbers(text, number)
    elif re.fullmatch("[A-Za-z]+", text):
        found += words(text)
    elif form.kind in ("set", "union"):
        found += unordered(text, form.kind)
    elif form.kind.startswith("matrix"):
        found += [text.replace("pmatrix", "bmatrix"), text.replace(r"\\", r" \\ ")]
        found += [re.sub(r"(\d+)/(\d+)", r"\\dfrac{\1}{\2}", text)]
    elif form.kind in ("()", "(]", "[)", "[]"):
        (left, *_, right), inner = text, text[1:-1].replace(",", ", ")
        found += [rf"\left{left}{inner}\right{right}", rf"\big{left} {inner} \big{right}"]
    elif "=" not in text:
        found += expressions(text)
    return [*found, *equations(answer, text, form.kind)]


def numbers(text: str, number: Fraction) -> list[str]:
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


def words(text: str) -> list[str]:
    commands = (r"\text", r"\textbf", r"\mathrm", r"\mbox")
    if len(text) == 1:
        return [f"({text})", *(rf"{c}{{({text})}}" for c in commands), rf"\text{{{text}}}"]
    return [text.capitalize(), text.upper(), *(rf"{c}{{{text}}}" for c in commands)]


def unordered(text: str, kind: str) -> list[str]:
    if kind == "union":
        return [r" \cup ".join(reversed(text.split(r"\cup")))]
    items = text.removeprefix(r"\{").removesuffix(r"\}").split(",")
    found = [",".join(reversed(items)), rf"\left\{{ {', '.join(items)} \right\}}"]
    if len(items) > 1:
        found += [" and ".join(items), rf"{items[0]} \text{{ or }} {','.join(items[1:])}"]
    if text.count(r"\pm") == 1:
        signs = [re.sub(r"\\pm ?", sign, item) for item in items for sign in "+-"]
        found.append(", ".join(dict.fromkeys(signs)))
    return found


def expressions(text: str) -> list[str]:
    found = [rf"\left({text}\right)"]
    if re.search(r"[({\[]", text.replace(r"\sqrt{", "").replace(r"\frac{", "")) is None:
        first, *rest = TERM.findall(text)
        found = ["".join([*rest, first if first[0] == "-" else f"+{first}"])]
    found += [re.sub(r"(\d)(\\sqrt|\\pi)", rf"\1{times}\2", text) for times in (r" \\cdot ", "*")]
    found += [re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", text)]
    return [*found, re.sub(r"^(\\?[a-z0-9{}]+)/(\d+)$", r"\\frac{\1}{\2}", text)]


def equations(answer: str, text: str, kind: str) -> list[str]:
    if "=" in answer or r"\in" in answer or re.fullmatch("[A-Za-z]+", text):
        return [answer.replace("=", " = ")]
    if kind in ("(]", "[)", "[]"):
        return [rf"x \in {text}", rf"x\in {answer}"]
    return [f"x={answer}", f"x = {answer}", rf"\theta = {answer}"] if "," not in text else []


def test_a_unanimous_correct_group_is_rewarded_on_every_problem(
    answers: list[str], equality: Equality
) -> None:
    split, n_writings = [], 0
    for answer in answers:
        group = list(dict.fromkeys(writings(answer)))
        ids, truth_id = classes([box(text) for text in group], answer, equality)
        n_writings += len(group)
        if set(ids.tolist()) != {truth_id}:
            split.append((answer, [t for t, a in zip(group, ids, strict=True) if a != truth_id]))
    assert split == []
    assert len(answers) == 500
    assert n_writings > 8_000
    assert equality.n_given_up == 0


def test_different_reference_answers_are_never_merged(answers: list[str], equality: Equality):
    """All pairs of the 500; two problems ask for -2 and 1, in either order."""
    answer_ids = AnswerIds([None], equality)
    ids = answer_ids.ids(0, [box(answer) for answer in answers]).tolist()
    merged = {
        (answer_ids.text(0, found), canonical(answer))
        for answer, found in zip(answers, ids, strict=True)
        if answer_ids.text(0, found) != canonical(answer)
    }
    assert merged == {("1,-2", "-2,1")}
    assert len(set(ids)) == len({canonical(answer) for answer in answers}) - 1


def mistakes(answer: str) -> list[str]:
    """Wrong answers that differ little from the reference."""
    text = canonical(answer)
    found = [f"-({text})", f"{text}+1", f"2({text})", f"{text}1", f"3{text}"]
    number = re.search(r"\d+", text)
    if number:
        for wrong in (int(number[0]) + 1, int(number[0]) * 10):
            found.append(f"{text[: number.start()]}{wrong}{text[number.end() :]}")
    if text[0] in "([" and text[-1] in ")]" and form_of(text).kind in ("()", "(]", "[)", "[]"):
        items = text[1:-1].split(",")
        found.append(f"{text[0]}{','.join(reversed(items))}{text[-1]}")
        found.append(f"{'[' if text[0] == '(' else '('}{text[1:]}")
        found.append(text[1:-1])
    # Twice 0 and ten times 0 are no mistakes.
    return [wrong for wrong in found if exact(wrong.strip("-2()")) != 0 and wrong != text]


def test_near_misses_are_not_rewarded(answers: list[str], equality: Equality) -> None:
    wrongly, n_mistakes = [], 0
    for answer in answers[::3]:
        group = mistakes(answer)
        ids, truth_id = classes([box(answer), *map(box, group)], answer, equality)
        n_mistakes += len(group)
        wrongly += [(answer, text) for text, a in zip(group, ids[1:], strict=True) if a == truth_id]
    assert wrongly == []
    assert n_mistakes > 1_000
