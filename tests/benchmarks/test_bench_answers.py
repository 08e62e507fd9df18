"""The pairs of answers of `bench_answers.py`: their file, and what this project makes of them."""

from bench_answers import FILE, MAX_SPLIT, read_pairs, same_here, wrong

PAIRS = read_pairs()


def test_half_of_the_pairs_are_near_misses_and_none_stands_twice() -> None:
    n_equal = sum(pair.equal for pair in PAIRS)
    assert len(PAIRS) >= 400
    assert abs(2 * n_equal - len(PAIRS)) <= 0.05 * len(PAIRS)
    assert len({frozenset(pair[2:]) for pair in PAIRS}) == len(PAIRS)
    assert {len({pair.one, pair.other}) for pair in PAIRS} == {2}


def test_no_pair_contradicts_what_follows_from_others() -> None:
    """Equality is an equivalence: different answers are linked by no chain of equal ones."""
    root: dict[str, str] = {}

    def first(answer: str) -> str:
        while answer in root:
            answer = root[answer]
        return answer

    for pair in PAIRS:
        one, other = first(pair.one), first(pair.other)
        if pair.equal and one != other:
            root[one] = other
    assert not [pair for pair in PAIRS if not pair.equal and first(pair.one) == first(pair.other)]


def test_a_wrong_judge_is_seen() -> None:
    assert wrong(lambda one, other: True, PAIRS) == [pair for pair in PAIRS if not pair.equal]
    assert wrong(lambda one, other: False, PAIRS) == [pair for pair in PAIRS if pair.equal]
    ordered = wrong(lambda one, other: one < other, PAIRS)
    assert ordered == [pair for pair in PAIRS if not pair.equal]


def test_this_project_merges_none_and_splits_few() -> None:
    found = wrong(same_here, PAIRS)
    assert [pair for pair in found if not pair.equal] == []
    assert len(found) <= MAX_SPLIT * sum(pair.equal for pair in PAIRS), found


def test_the_page_counts_the_pairs_of_the_file() -> None:
    n_equal = sum(pair.equal for pair in PAIRS)
    splits = sum(pair.equal for pair in wrong(same_here, PAIRS))
    page = (FILE.parents[1] / "docs" / "your-model.md").read_text(encoding="utf-8")
    for told in (
        f"{len(PAIRS):,} pairs of our own",
        f"of {len(PAIRS) - n_equal} pairs of different answers | 0 |",
        f"of {n_equal} pairs of equal answers | {n_equal} |",
    ):
        assert told in page
    assert f"| {splits} |" in page[page.index("pairs of equal answers") :].split("\n")[0]
