import numpy as np
import pytest
from hostile_answers import box
from hypothesis import example, given, settings
from hypothesis import strategies as st

from real.answers import NO_TRUTH, UNSEEN, AnswerIds, canonical, classes, last_box, repeats
from real.answers.canonical import MAX_LENGTH

PIECES = [
    r"\boxed{", r"\\boxed{", r"\fbox {", r"\boxed", "{", "}", r"\{", r"\}", "\\", r"\\", "$", " ",
    r"\frac", r"\dfrac", r"\sqrt", r"\text{", r"\mbox{ cm}", r"\left", r"\right", "(", ")", "[",
    "]", ",", r"\!", r"\,", "^", "_", r"\circ", r"\pi", r"\%", "%", "=", "x", "C", "+", "-", ".",
    "/", "0", "00", "1", "25", ".0", "1,234", ", 234", r"\cdot", "*", r"\in", r"\begin{pmatrix}",
    r"\end{bmatrix}", "&", r"\overline", "degrees", "i", "\x00", "\n", "\u2212", "\u00b0",
]  # fmt: skip
latex = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
anything = st.one_of(latex, st.text(max_size=60))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no box", None), (r"\\boxed{7}", "7"), (r"\boxed{}", ""), (r"\boxed", None),
        (r"\boxed{1 \\ } and more", r"1 \\ "), (r"\boxed{1} and \boxed{{2}", "1"),
        (r"\boxed{1 and \boxed{2}", "2"), (r"}} { \boxed{5} {", "5"), (r"\boxed{", None),
        (r"\boxedx{5}", None), (r"\boxed{(0, 1\}}", r"(0, 1\}"), (r"\boxed{ } \boxed{$$}", ""),
        (r"\boxed\frac{1}{2}.", r"\frac{1}{2}"), (r"\boxed{1}, \boxed{2} and \boxed{3}", "3"),
        (r"\boxed{1} and \boxed{2", "1"), (r"\boxed{a\boxed{b}}", "b"),
        (r"\boxed{5\boxed{}}", r"5\boxed{}"), (r"\boxed{5} \boxed{..}", "5"), (r"\boxed{{}}", ""),
        (r"\boxed{\ldots} \boxed{\text{[Answer]}}", ""), (r"\boxed{<} \boxed{ your answer }", "<"),
        (r"\boxed{\times} \boxed{\underline{\qquad}} \boxed{___}", r"\times"),
        (r"\boxed{\{\}} \boxed{\square} \boxed{\mathbf{}}", r"\{\}"), (r"\boxed{the}x", ""),
        (r"\boxed{7} \boxed{theory}", "theory"), (r"\boxed{7} \boxed{\textbf{n}}", r"\textbf{n}"),
        (r"\boxed{7} \boxed{<final answer>} \boxed{答案}", "7"), (r"\boxed{7} \boxed{[]}", "[]"),
        (r"\boxed{\textx}", r"\textx"),
    ],
)  # fmt: skip
def test_last_box(text, expected):
    assert last_box(text) == expected


MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box" + "{" * MEGABYTE, None), ("box" + "}" * MEGABYTE, None),
        ("box" + "\\" * MEGABYTE, None), (r"\boxed{" * (MEGABYTE // 7), None),
        (r"\boxed" + " " * MEGABYTE, None), (r"\boxed{5}" + r"\boxed{" * (MEGABYTE // 7), "5"),
        (r"\boxed{" * 70_000 + "}" * 70_000, ""),
    ],
)  # fmt: skip
def test_a_quadratic_scan_of_hostile_text_would_never_end(text, expected):
    assert last_box(text) == expected


@pytest.mark.parametrize(
    "writings",
    [
        ("25", "025", "25.0", "25.", "$25$", r"\(25\)", "+25", r"25^\circ", r"25^{\circ}", "25°"),
        ("25", "x=25", "x = 25", r"\text{25}", r"25\%", "25%", r"\$25", "{25}", r"\boxed{25}"),
        ("25", r"25\text{ cm}^2", r"25 \mbox{ inches}", "25 degrees", r"\theta = 25^\circ"),
        ("0", "-0", "0.0", "00"), ("25", "25\\,"),
        ("1/2", r"\frac12", r"\dfrac12", r"\tfrac{1}{2}", r"\frac 12", r"\frac{1}2", "1 / 2"),
        ("-1/2", r"-\frac12", r"\frac{-1}{2}", "\u22121/2"),
        (r"\pi/6", r"\frac{\pi}{6}", r"\frac\pi6", "π/6"),
        ("1234", "1,234", r"1,\!234", r"1{,}234", r"1,\! 234", r"\$1,234.0"),
        ("0.5", ".5", "0.50"), (r"\frac{\sqrt{3}}{3}", r"\sqrt3/3"),
        ("C", r"\text{C}", "(C)", r"\text{(C)}", r"\textbf{(C)}", "C."),
        ("evelyn", r"\text{Evelyn}", "Evelyn"), ("p-q", "p - q"), ("x^2", "x^{2}"),
        ("(-2,7]", r"\left(-2, 7\right]", r"x \in (-2,7]"),
        (r"(3,\pi/2)", r"\left( 3, \frac{\pi}{2} \right)"),
        (r"\begin{pmatrix}1/5\\0\end{pmatrix}", r"\begin{bmatrix}\frac{1}{5}\\ 0 \\ \end{bmatrix}"),
        (r"11\sqrt{2}", r"11 \sqrt2", "11√2"), (r"2\cdot3", r"2 \times 3", "2*3"),
        (r"\{1,2\}", r"\left\{1, 2\right\}"),
    ],
)  # fmt: skip
def test_writings_of_one_answer_are_one(writings):
    (found,) = {canonical(writing) for writing in writings}
    assert found


@pytest.mark.parametrize(
    "pair", [("1/2", "2/4"), ("1,-2", "-2,1"), ("0.1", r"0.1\overline{0}"), ("1.8", r"1\frac45")]
)
def test_what_only_arithmetic_calls_equal_stays_different(pair):
    """`test_different_answers` has answers that are different by every equality."""
    assert canonical(pair[0]) != canonical(pair[1])


@settings(max_examples=150, deadline=None)
@given(anything)
@example(r"***\overline**x").via("loses a mark in every pass")
@example(".0*CCx")
@example("\u00bc0\u00b7\u00c0A")
def test_canonical_comes_to_rest(text):
    once = canonical(text)
    assert canonical(once) == once
    assert len(once) <= MAX_LENGTH


def test_over_long_and_empty_answers_are_unparseable():
    answers = ["1" * MAX_LENGTH, "1" * (MAX_LENGTH + 1), "", " $ $ ", r"\text{}", r"\text{" * 90]
    ids, _ = classes([box(answer) for answer in answers])
    assert ids.tolist() == [0, -1, -1, -1, -1, -1]


def test_classes_in_order_of_first_appearance():
    responses = [box("3"), "nothing", box(r"\frac12"), box("3.0"), box("1/2"), box("7")]
    ids, truth_id = classes(responses, "7")
    assert ids.dtype == np.int64
    assert ids.tolist() == [0, -1, 1, 0, 1, 2]
    assert truth_id == 2
    assert classes(responses, box("0.5"))[1] == 3  # a new class, equal to no response's
    assert classes(responses)[1] == NO_TRUTH
    assert classes([])[0].shape == (0,)


@settings(deadline=None)
@given(st.lists(st.one_of(latex, latex.map(box)), max_size=12), st.one_of(st.none(), latex))
def test_classes_never_raise_and_follow_one_equality(responses, truth):
    ids, truth_id = classes(responses, truth)
    for response, answer in zip(responses, ids, strict=True):
        inside = last_box(response)
        text = "" if inside is None else canonical(inside)
        assert (answer == -1) == (text == "")
        if truth is not None and last_box(truth) is None and text:
            assert (answer == truth_id) == (text == canonical(truth))
    seen = [answer for answer in dict.fromkeys(ids.tolist()) if answer >= 0]
    assert seen == list(range(len(seen)))


def test_book_keeps_ids_over_visits():
    answer_ids = AnswerIds(["7", None, "x" * (MAX_LENGTH + 1)])
    assert len(answer_ids) == 3
    assert answer_ids.n_answers == 0
    assert answer_ids.ids(0, [box("3"), box("5")]).tolist() == [0, 1]
    assert answer_ids.truth_id(0) == UNSEEN
    assert answer_ids.ids(0, [box("5"), box("7.0"), "?"]).tolist() == [1, 2, -1]
    assert answer_ids.ids(1, [box("5")]).tolist() == [0]
    assert [answer_ids.truth_id(problem) for problem in range(3)] == [2, NO_TRUTH, NO_TRUTH]
    assert [answer_ids.has_truth(problem) for problem in range(3)] == [True, False, False]
    assert answer_ids.n_answers == 3
    assert answer_ids.text(0, 2) == "7"


def test_what_is_no_list_of_texts_is_refused():
    with pytest.raises(TypeError, match=r"several texts of one problem.*\[text\]"):
        AnswerIds([None]).ids(0, box("5"))
    with pytest.raises(TypeError, match="texts or None, not 5"):
        AnswerIds([None, 5])


@pytest.mark.parametrize(
    ("response", "strict", "flexible"),
    [
        (r"so \boxed{32}, not 7", "32", "32"), (r"so \box{32}", "", "32"), ("no idea", "", ""),
        ("it is 1,234.", "", "1234"), ("$5.50 each", "", "5.50"), ("x = -3, as asked", "", "-3"),
        ("1.000.000", "", "1.000.000"),
    ],
)  # fmt: skip
def test_flexible_extraction_reads_the_last_number_without_a_box(response, strict, flexible):
    ids = AnswerIds([None])
    readings = [("strict", strict), ("flexible", flexible)]
    for extract, expected in readings:
        (found,) = ids.ids(0, [response], extract)
        assert (ids.text(0, found) if found >= 0 else "") == canonical(expected)


@pytest.mark.parametrize(
    "question, answer, expected",
    [
        ("80 * 5 = ?", r"80 \times 5", True),
        ("80 * 5 = ?", "400", False),
        (r"Compute $\dfrac{1}{2}+\frac{1}{3}$.", r"\frac12 + \frac{1}{3}", True),
        (r"Find \left(2^{10}\right).", "2^10", True),
        ("What is 5!?", "5!", True),
        ("What is 3/4 in percent?", "3/4", False),
        ("What is -5 + 3?", "-5", False),
        ("Is x even?", "x", False),
    ],
)
def test_a_formula_of_the_question_is_no_computed_answer(question, answer, expected):
    boxed = f"It is \\boxed{{{answer}}}."
    assert repeats(question, [boxed, answer, boxed]) == 2 * expected
