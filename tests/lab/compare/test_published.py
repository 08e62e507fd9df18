from lab.base.arms import title
from lab.compare.published import (
    AIME25,
    AMC,
    AVERAGE,
    CELLS,
    FATES,
    LLAMA,
    MATH,
    METHOD_TITLES,
    PASS_AT_1,
    QWEN,
    QWEN3,
    TOTAL,
    Setting,
    most_accuracy,
    note_on_fate,
    note_on_pass,
    published_fate,
)


def test_spot_checks_against_the_paper():
    assert PASS_AT_1[LLAMA, AIME25, "scope"] == 0.8 and PASS_AT_1[QWEN, AIME25, "guard"] == 24.1
    assert PASS_AT_1[QWEN3, MATH, "rcsu"] == 90.3 and len(PASS_AT_1) == 3 * 5 * 8
    assert published_fate(Setting(LLAMA, MATH), "guard", "Stable Always Right") == 32.0
    assert published_fate(Setting(QWEN3, MATH), "ttrl", "Degraded") is None
    assert published_fate(Setting(LLAMA, MATH), "frs", TOTAL) is None
    totals = [published_fate(Setting(LLAMA, MATH), arm, TOTAL) for arm in ("ttrl", "guard")]
    assert totals == [60.2, 28.0]
    for _, _, method in PASS_AT_1:
        assert METHOD_TITLES.get(method, title(method)) != method


def test_an_average_that_is_no_mean_and_scores_above_what_the_fates_allow_are_noted():
    noted = {key for key in PASS_AT_1 if note_on_pass(Setting(*key[:2]), key[2])}
    assert {key for key in noted if key[1] == AVERAGE} == {(LLAMA, AVERAGE, "ttrl")}
    assert "24.175" in note_on_pass(Setting(LLAMA, AVERAGE), "ttrl")
    assert {(m, d) for m, d, _ in noted if d != AVERAGE} == {(LLAMA, MATH), (QWEN, MATH)}
    assert all(PASS_AT_1[key] <= most_accuracy(FATES[key]) for key in FATES)
    note = note_on_pass(Setting(LLAMA, MATH), "ttrl")
    assert "44.7 %" in note and "57.4 %" in note
    assert not note_on_pass(Setting(LLAMA, MATH), "frs")


def test_shares_that_are_no_number_of_problems_are_noted():
    noted = {
        (*key, cell)
        for key in FATES
        for cell in CELLS
        if note_on_fate(Setting(*key[:2]), key[2], cell)
    }
    cells = ("Degraded", "Marginal Degraded", "Stable Always Right")
    assert noted == {(LLAMA, AMC, "guard", cell) for cell in cells}
    assert note_on_fate(Setting(LLAMA, AMC), "guard", "Degraded") == "no multiple of 1/83"
    assert "Degraded and Marginal Degraded" in note_on_fate(Setting(LLAMA, AMC), "guard", TOTAL)
