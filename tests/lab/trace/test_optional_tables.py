import pickle

import numpy as np
import pytest

from lab.compare.collection import collect, gather
from lab.trace.schema import names
from lab.trace.trace import MemoryRun, RunFolder, Trace, load

TIMES = ("step", "epoch", "visit")
TEXTS = ["\\frac{1}{2}", "<script>alert('1')</script>", "½ 😀 \u202e", ""]
ANSWERS = {"replicate": 0, "problem": [0, 1, 1, 1], "answer": [0, 0, 1, 2], "text": TEXTS}
ANSWERS |= {time: [0, 0, 1, 1] for time in TIMES}
VOTES = {"replicate": 0, "problem": 0, "answer": [3, 3, 7], "count": [64, 40, 24]}
VOTES |= {time: [0, 1, 1] for time in TIMES}


def test_votes_and_texts_come_back_from_disk_and_from_memory(make_manifest, make_visits, tmp_path):
    first = {"replicate": 0, "problem": 7, "answer": 0, "text": "1", **dict.fromkeys(TIMES, 0)}
    memory = MemoryRun(make_manifest(), 9)
    with RunFolder.create(tmp_path / "run", make_manifest(), 9) as run:
        run.write("visits", make_visits(np.full((1, 2, 9), 0.5)))
        for recorder in (memory, run):
            recorder.write("answers", first)
            recorder.write("answers", ANSWERS)
            recorder.write("votes", VOTES)
    for trace in (load(tmp_path / "run"), Trace.of(memory)):
        assert trace.votes["answer"].tolist() == [3, 3, 7] and trace.votes["count"].sum() == 128
        assert trace.votes is trace.votes and trace.answers["text"].tolist() == ["1", *TEXTS]
        assert trace.answer_texts(0, 1) == {0: TEXTS[1], 1: TEXTS[2], 2: ""}
        assert trace.answer_texts(0, 0) == {0: TEXTS[0]}
        assert trace.answer_texts(1, 0) == trace.answer_texts(0, 8) == {}


def test_a_run_without_them_has_empty_tables(make_trace, save, tmp_path):
    trace = make_trace("ttrl", np.full((1, 2, 9), 0.5), [[0.5] * 9])
    ((comparison,), _) = gather([trace])
    sent = pickle.loads(pickle.dumps(comparison.traces["ttrl"]))
    for one in (trace, sent, load(save(trace, tmp_path / "run"))):
        assert list(one.answers.columns) == list(names("answers"))
        assert list(one.votes.columns) == list(names("votes"))
        assert one.answers.empty and one.answer_texts(0, 0) == {}
        assert one.votes.empty and one.votes["count"].dtype == np.int32


def test_texts_are_texts_and_ids_are_not(make_manifest):
    run = MemoryRun(make_manifest())
    with pytest.raises(ValueError, match="answers: text: int64"):
        run.write("answers", ANSWERS | {"text": [1, 2, 3, 4]})
    with pytest.raises(ValueError, match="answers: answer: <U1, must be int32"):
        run.write("answers", ANSWERS | {"answer": ["0", "0", "1", "2"]})


def test_replicates_of_texts_follow_their_seeds(make_manifest, make_visits, tmp_path):
    for seed in (5, 4):
        with RunFolder.create(tmp_path / str(seed), make_manifest(seeds=[seed])) as run:
            run.write("visits", make_visits(np.full((1, 1, 9), 0.5)))
            own = {"problem": 0, "answer": [0, 1, 2, 3], "text": f"{seed}"}
            run.write("answers", ANSWERS | own)
    (comparison,) = collect([tmp_path]).comparisons
    trace = comparison.traces["ttrl"]
    assert [trace.answer_texts(r, 0)[3] for r in (0, 1)] == ["4", "5"]
