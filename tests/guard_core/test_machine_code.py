import subprocess
import sys

import numpy as np
import pytest
from guard_histories import arrays, checked, configs, same, same_walks, vote_histories, walk
from hypothesis import given

from guard_core import Draws, Guard, GuardConfig, Votes, machine_code


@checked(40)
@given(history=vote_histories(max_visits=8), config=configs())
def test_states_decisions_and_streams_have_the_bits_of_plain_python(history, config):
    plain = walk(history, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_code, "COMPILED_FROM", 1)
        same_walks(plain, walk(history, config))


def large_step(monkeypatch, hidden: bool):
    if hidden:
        monkeypatch.setitem(sys.modules, "numba", None)
    n = machine_code.COMPILED_FROM
    rng, guard = np.random.default_rng(1), Guard(GuardConfig())
    votes = Votes.from_answers(rng.integers(-1, 3, (n, 9)), n_samples=6, n_answers=3)
    rows = guard.step(guard.init(n), votes, Draws(*rng.random((3, n))))[0]
    return guard.step(rows, votes, Draws(*rng.random((3, n))), rng.random((n, 3)))


def test_many_rows_are_compiled_and_without_numba_they_are_not(monkeypatch):
    pytest.importorskip("numba")
    compiled = large_step(monkeypatch, hidden=False)
    plain = large_step(monkeypatch, hidden=True)
    for one, two in zip(compiled, plain, strict=True):
        same(arrays(one), arrays(two))
    assert machine_code.law().visit_batches.signatures


def test_numba_is_imported_by_a_large_call_alone():
    code = """
import sys
import numpy as np
from guard_core import Draws, Guard, GuardConfig, Votes
guard = Guard(GuardConfig())
votes = Votes(*np.ones((2, 2, 3), int), 3, 3)
guard.step(guard.init(2), votes, Draws(*np.zeros((3, 2))))
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
