import base64
import json
import re
import zlib

import numpy as np
import pytest

from lab.measures.problems import problem_life
from lab.report.problems import WORST_FIRST, problem_columns, problem_ids, problem_sections, redrawn


def about(content):
    block = r'<script type="text/plain" id="problem-table-0-about">(.*?)</script>'
    return json.loads(zlib.decompress(base64.b64decode(re.search(block, content)[1])))


def test_each_replicate_has_its_own_numbers(without_votes):
    columns = problem_columns(without_votes, [1])
    fates = without_votes.comparison.fates("guard").query("replicate == 1").sort_values("problem")
    known = columns["1.fate.1"] > 0
    assert known.tolist() == [n != 1 for n in range(10)]
    assert [WORST_FIRST[code - 1] for code in columns["1.fate.1"][known]] == [*fates["fate"]]
    for name in ("ila", "fla"):
        np.testing.assert_allclose(columns[f"1.{name}.1"][known], fates[name], atol=6e-4)
    assert np.isnan(columns["1.ila.1"][1])
    assert "1.fate.0" not in columns and "0.fate.1" in columns


def test_over_the_replicates_the_commonest_fate_and_means_stand(compared):
    world = compared(votes=False, arms=("ttrl",))
    columns = problem_columns(world, [])
    fates = world.comparison.fates("ttrl")
    for problem in range(10):
        own = fates[fates["problem"] == problem]
        if own.empty:
            assert columns["0.fate"][problem] == columns["0.known"][problem] == 0
            continue
        counts = own["fate"].value_counts()
        fate = WORST_FIRST[columns["0.fate"][problem] - 1]
        assert counts[fate] == counts.max() == columns["0.same"][problem]
        tied = [name for name in WORST_FIRST if counts[name] == counts.max()]
        assert fate == tied[0]
        assert columns["0.known"][problem] == 2
        assert columns["0.ila"][problem] == pytest.approx(own["ila"].mean(), abs=6e-4)


def test_match_rates_and_flips_are_those_of_training(without_votes):
    visits = without_votes.comparison.traces["ttrl"].visits
    columns = problem_columns(without_votes, [0])
    life = problem_life(visits, 0, 4).iloc[1:]
    assert columns["0.flips.0"][4] == life["flipped"].sum()
    assert columns["0.first.0"][4] == pytest.approx(life["match_rate"].iloc[:3].mean(), abs=6e-4)
    assert columns["0.last.0"][4] == pytest.approx(life["match_rate"].iloc[-5:].mean(), abs=6e-4)
    flips = [problem_life(visits, r, 4)["flipped"].iloc[1:].sum() for r in (0, 1)]
    assert columns["0.flips"][4] == pytest.approx(np.mean(flips))


def test_match_rates_are_shown_only_where_a_truth_is_unknown(without_votes, worlds):
    keys = [kind["key"] for kind in about(problem_sections([without_votes]))["kinds"]]
    assert keys == ["fate", "ila", "fla", "first", "last", "flips"]
    known = about(problem_sections(worlds[1:]))
    assert [kind["key"] for kind in known["kinds"]] == ["fate", "ila", "fla", "flips"]
    assert set(known["kinds"][0]) == {"key", "name", "meaning", "percent"}  # read by the script
    assert known["replicates"] == ["seed 0", "seed 1", "seed 2"] and known["ids"] is None


def test_ids_are_shown_where_all_runs_agree(compared, evil):
    assert problem_ids(compared(votes=False))[3] == f"id-3-{evil}"
    assert problem_ids(compared(votes=False, extra={})) is None


def test_problems_that_differ_between_replicates_are_not_averaged(compared):
    world = compared(votes=False, config={"fixed_population": False})
    assert redrawn(world)
    content = problem_sections([world])
    assert about(content)["redrawn"] is True and "shows one replicate at a time" in content
    own = problem_columns(world, [0])
    last = [WORST_FIRST[code - 1] if code else "not known" for code in own["1.fate.0"]]
    assert last != [WORST_FIRST[code - 1] if code else "not known" for code in own["1.fate"]]
    paper = content.split('class="on-paper"')[1]
    assert re.findall("<td>[^<]*</td><td>([^<]*)</td></tr>", paper) == last
    assert "of replicate 0 (seed 0)" in paper
    fixed = compared(votes=False, config={"fixed_population": True})
    measured = {"fixed_population": False, "policy": "measured"}  # of one real model
    assert not redrawn(compared(votes=False, config=measured))
    assert not redrawn(fixed)
    assert "one replicate at a time" not in problem_sections([fixed])
    assert redrawn(compared(votes=False, config={"fixed_population": True}, seeds=[0, 1]))


def test_the_page_says_which_lives_it_holds(with_texts):
    assert "The lives of all 2 replicates can be opened." in problem_sections([with_texts])
    content = problem_sections([with_texts], budget=0)
    assert "the lives of number 0 can be opened" in content
    assert about(content)["lives"] == [[0], [0]]
    assert 'id="life-0-1-0"' in content and 'id="life-0-1-1"' not in content


def test_paper_has_the_first_problems_and_says_so(worlds):
    content = problem_sections(worlds[1:])
    paper = content.split('class="on-paper"')[1]
    assert "12 of 12 problems; the page itself lists all of them" in paper
    assert paper.count("<tr>") == 13
    code = problem_columns(worlds[1], [])["0.fate"][0]
    assert re.search('row">0</th><td>(.*?)</td>', paper)[1] == WORST_FIRST[code - 1]


def test_markup_of_a_run_does_not_reach_the_page(with_texts):
    content = problem_sections([with_texts])
    assert "<img" not in content and "</script><b>" not in content
