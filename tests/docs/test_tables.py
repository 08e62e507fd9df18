import re

import numpy as np
import pandas as pd
import pytest

from guard_core.rules import RULES
from lab.base.errors import UserError

MACRO = re.compile(r"^[A-Z]{4,} [\w.+-]+( [\w.+-]+)?$", re.MULTILINE)


@pytest.fixture
def tables(tool):
    return tool("tables")


def test_no_table_of_a_page_is_stale(tables):
    pages = {page.name: page.read_text(encoding="utf-8") for page in tables.PAGES}
    stale = [name for name, text in pages.items() if tables.updated(text) != text]
    assert stale == [], "run: python docs/tools/tables.py"
    assert sum(text.count("<!-- table: ") for text in pages.values()) >= 15
    assert [name for name, text in pages.items() if MACRO.search(text)] == []


def test_a_table_is_replaced_and_a_wrong_one_refused(tables):
    page = "a\n\n<!-- table: rules -->\nout of date\n<!-- end -->\n\nb"
    made = tables.updated(page)
    assert "| [`ttrl`](https://arxiv.org/abs/2504.16084) |" in made and "out of date" not in made
    assert made.endswith("<!-- end -->\n\nb")
    assert tables.updated(made) == made
    with pytest.raises(UserError, match="rules: has no <!-- end -->"):
        tables.updated(page.replace("<!-- end -->", page))
    with pytest.raises(UserError, match="rules: has no <!-- end -->"):
        tables.updated(page.replace("<!-- end -->", ""))
    with pytest.raises(UserError, match="nothing: unknown, give one of agreement,"):
        tables.updated(page.replace("rules", "nothing"))


def test_a_wrong_page_is_named_and_stays_as_it_is(tables, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: nothing -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "PAGES", [page])
    with pytest.raises(SystemExit, match=f"{page}: table nothing: unknown"):
        tables.main()
    assert "nothing" in page.read_text()
    page.write_text("<!-- table: rules -->\n<!-- end -->\n")
    tables.main()
    assert page.read_text().count("\n") > len(RULES)


def test_p_by_sign_flips_of_none_of_equal_and_of_too_many_pairs(tables):
    assert tables.sign_flip(pd.Series([1.0, 2.0, np.nan, 3.0, 4.0])) == 0.125  # 2 of 16 patterns
    assert tables.sign_flip(np.zeros(3)) == 1
    assert np.isnan(tables.sign_flip(np.ones(21))) and np.isnan(tables.sign_flip(np.array([])))
