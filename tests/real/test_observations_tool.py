import random
import time
from fractions import Fraction

import numpy as np
import pytest

from real.vote.tool import MOST_BITS, claims, tool_verdicts


def found(text):
    return [(str(left), str(right)) for left, right in claims(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so 3+4=8.", [("7", "8")]),
        ("2*3+4*5 = 6+20 = 26 = 2*13", [("26", "26")] * 3),
        ("2 + 3 * 4 ^ 2 = 50", [("50", "50")]),
        ("2^3^2 = 512, -2^2 = -4, 2^{-1} = 1/2", [("512", "512"), ("-4", "-4"), ("1/2", "1/2")]),
        ("8 - 3 - 2 = 3; 8 / 4 / 2 = 1; 2 - -3 = 5", [("3", "3"), ("1", "1"), ("5", "5")]),
        (r"$\frac{1}{2}+\dfrac{1}{3} = \frac{5}{6}$", [("5/6", "5/6")]),
        (r"3 \times 4 \div 6 = 2 \cdot 1 = \boxed{2}.", [("2", "2")] * 2),
        (r"\left(3 + 4\right) * 2 &= 7*2 \\" + "\n &= 14", [("14", "14")] * 2),
        ("3 \u00d7 4 \u2212 2 \u00f7 2 = 11", [("11", "11")]),
        ("2(3+4) = 14 = (2)(7)", [("14", "14")] * 2),
        ("1,234 + 1 = 1{,}235", [("1235", "1235")]),
        ("0.1 + 0.2 = 0.3 and .5*2 == 1", [("3/10", "3/10"), ("1", "1")]),
        ("10/3 = 3.33", [("10/3", "333/100")]),
        ("**ok**\n1. 3+4=7\n2) 5 = 2+3\n(as 3 + 4 = 7)", [("7", "7"), ("5", "5"), ("7", "7")]),
        ("10/4 = 2.5 cm", [("5/2", "5/2")]),
        (r"2^{10} = 1024 \equiv 4", [("1024", "1024")]),
        ("2x = 3+4 = 7", [("7", "7")]),
        ("3+4 = 7, x + 1 = 8", [("7", "7")]),
        ("3+4 = 7 which is less than x + 1", [("7", "7")]),
        (r"3 \, + 4 = 7 \$ + 1", [("7", "8")]),
        ("$-3+4=1$ and $+2 = 1+1$", [("1", "1"), ("2", "2")]),
    ],
)
def test_claims_that_are_read(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x + 2 = 5", "xy + 2 = 5", "2 + 3x = 5", "f(4) = 3+1 y", "x_1 + 1 = 2", "sqrt 4 + 1 = 3",
        r"\sqrt{4} + 1 = 3", "log 2+2 = 0.6", "5! = 120", "5! + 1 = 121", "5+5 = 10 mod 3",
        "5+5 = 1 (mod 3)", "50% + 1 = 3", "3 + 2 = 4 red apples + 1", "half of 6 + 2 = 5",
        "3 + 4 != 8", "3 + 4 <= 8", "3 + 4 := 8", "3 < 4", "7 = 7", "x = 3", "n=5=5",
        "12 + 3\n- 5*2 = 5", "- 3 + 4 = 7", "1/2(3) = 2+1", r"2\frac{1}{2} = 5/2", "1/0 = 1+1",
        "0^0 = 1+0", "4^(1/2) = 1+1", "(3 + 4 = ) 7", "3 + = 7", "3 + 4 =", "= 7", "2((3+4) = 14",
        "15/2 = 7 remainder 1", "1e3 = 500+500", "|3| + 1 = 5", "", "=", "3 + 4 ≈ 8", "0x1+1 = 9",
    ],
)  # fmt: skip
def test_what_might_be_misread_is_passed_over(text):
    assert found(text) == []


def test_a_response_needs_one_claim_and_no_wrong_one():
    texts = ["2+2=4", "2+2=4 so 3*3=8", "it is 4", "2+2=4, so that x+1=7", "2+2=4", ""]
    verdicts = tool_verdicts(texts)
    assert verdicts.dtype == np.bool_
    assert verdicts.tolist() == [True, False, False, True, True, False]
    assert tool_verdicts([]).shape == (0,)


def test_values_are_those_of_exact_arithmetic():
    """Random expressions against the same ones put together as fractions."""
    rng = random.Random(0)

    def make(depth):
        if depth == 0 or rng.random() < 0.2:
            number = rng.randint(0, 99)
            return str(number), Fraction(number)
        (left, a), (right, b) = make(depth - 1), make(depth - 1)
        kind = rng.choice("+-*/")
        if kind == "/" and b == 0:
            kind = "+"
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / (b or 1)}[kind]
        return f"({left} {kind} {right})", value

    for _ in range(300):
        text, value = make(4)
        if text.isdigit():
            continue
        assert list(claims(f"{text} = {value}")) == [(value, value)]
        verdicts = tool_verdicts([f"{text} = {value} = {text}", f"{text} = {value + 1}"])
        assert verdicts.tolist() == [True, False]


def test_scratch_work_of_the_tiny_task():
    problem = "3+0-1*6+0="
    right = r"3+0-6+0>3-6+0>7+0>\boxed{7}"
    slips = r"3+0-6+0>3-6+0>8+0>\boxed{8}"
    short = r"3+0-6+0>7+0>\boxed{7}"
    other = r"1+0-6+0>1-6+0>5+0>\boxed{5}"  # good work on another problem
    texts = [right, slips, short, other, right[:-1], r"\boxed{7}", "", "+>" + right]
    assert tool_verdicts(texts, problem).tolist() == [True] + [False] * 7
    assert tool_verdicts([right, slips, other]).tolist() == [True, False, True]


def hostile():
    rng = random.Random(1)
    pieces = [
        "9" * 50, "9^9^9^9", "2**99999999", "(" * 60, ")" * 60, "-" * 70, r"\frac{", "}{", "=",
        "1+", "1/", "/0", r"\boxed{", "__import__('os').system('x')", "1e999", "\x00", "\ud800",
        "x", "..", ",,", "1,000,", "\n", "$", "٣", "²", "≈", " ", "{,}", "\\", "0.", "3>",
    ]  # fmt: skip
    return ["".join(rng.choices(pieces, k=rng.randint(1, 30))) for _ in range(1000)]


def test_hostile_texts_are_fast():
    giants = [
        unit * (10**6 // len(unit))
        for unit in (
            "(", "1=", "1+1=2 ", "-", "2^", "9", r"\frac{1}{", "1,000", "=", "((1)=(", " ", "\\",
            "3+0>", "1(", "a=1+", "\n", "\n\\\\ ", "1.", "{,}", "(1+1)=",
        )
    ]  # fmt: skip
    texts = [*hostile(), *giants]
    began = time.process_time()
    verdicts = tool_verdicts(texts)
    assert time.process_time() - began < 20
    assert verdicts.shape == (len(texts),)


@pytest.mark.parametrize(
    "text",
    [
        "2^99999999 = 1+1", "(2^40)^(2^40) = 1+1", f"{'9' * 41} + 0 = {'9' * 41}",
        "-" * 300 + "1 = 1 - 2", "+".join(["1"] * 101) + " = 101",
        "*".join(["9" * 39] * (MOST_BITS // 128)) + " = 1",
    ],
)  # fmt: skip
def test_beyond_the_limits_is_not_checked(text):
    assert found(text) == []
    assert tool_verdicts([text + "; 1 + 1 = 2"]).tolist() == [True]
