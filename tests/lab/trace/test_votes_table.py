"""The optional fourth table: written where it was asked for, empty elsewhere, read when needed."""

import pickle

import numpy as np

from lab.compare.collection import gather
from lab.trace.schema import names
from lab.trace.trace import MemoryRun, RunFolder, Trace, load

VOTES = {
    "replicate": 0,
    "step": [0, 1, 1],
    "epoch": [0, 1, 1],
    "visit": [0, 1, 1],
    "problem": 0,
    "answer": [3, 3, 7],
    "count": [64, 40, 24],
}


def test_a_run_without_votes_has_an_empty_table(make_trace, save, tmp_path):
    trace = make_trace("ttrl", np.full((1, 2, 9), 0.5), [[0.5] * 9])
    read = load(save(trace, tmp_path / "run"))
    for one in (trace, read):
        assert one.votes.empty
        assert list(one.votes.columns) == list(names("votes"))
        assert one.votes["count"].dtype == np.int32


def test_votes_are_kept_and_read_when_they_are_asked_for(make_manifest, make_visits, tmp_path):
    with RunFolder.create(tmp_path / "run", make_manifest()) as run:
        run.write_visits(make_visits(np.full((1, 1, 9), 0.5)))
        run.write_votes(VOTES)
    trace = load(tmp_path / "run")
    assert trace.votes["answer"].tolist() == [3, 3, 7]
    assert trace.votes["count"].sum() == 128
    assert trace.votes is trace.votes


def test_in_memory(make_manifest, make_visits, make_steps, make_evals):
    visits, steps = make_visits(np.full((1, 1, 9), 0.5)), make_steps([0], 8)
    trace = Trace.in_memory(make_manifest(), visits, steps, make_evals([[0.5]]), VOTES)
    assert trace.votes["visit"].tolist() == [0, 1, 1]
    run = MemoryRun(make_manifest())
    run.write_votes(VOTES)
    assert Trace.of(run).votes["answer"].tolist() == [3, 3, 7]


def test_a_collected_trace_can_be_sent_to_another_process(make_trace):
    ((comparison,), _) = gather([make_trace("ttrl", np.full((1, 2, 9), 0.5), [[0.5] * 9])])
    assert pickle.loads(pickle.dumps(comparison.traces["ttrl"])).votes.empty
