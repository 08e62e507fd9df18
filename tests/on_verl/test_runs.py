"""Whole runs of verl's own trainer, with Ray, its queue and FSDP2 on two ranks.

Every run is shared by the tests that look at it: most of its time is the start of its processes.
"""

import json
import os
import random
import re
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from run_verl import MODEL, ROOT, settings
from safetensors.numpy import load_file
from step_again import step_again, whole
from transformers import AutoTokenizer
from whole_runs import N_PROBLEMS, Done, run, started

from lab.__main__ import main as report
from lab.base.settings import from_values
from lab.trace.trace import load
from real.other_trainers import GuardedRun
from real.settings.config import TrainConfig
from real.tiny import problems
from real.verl.plugin.trainer import MINORITY
from real.verl.plugin.votes import votes_of

N_STEPS, UNTIL_DEATH = 6, 3
LONG = ("trainer.save_freq=1", "trainer.total_epochs=3", "trainer.test_freq=2")
TRUTH = (
    *("guard.profile=release", "+guard.labels=truth", "+guard.step_factor=0.5"),
    *("trainer.n_gpus_per_node=1", "trainer.save_freq=1", "trainer.total_epochs=3"),
    "actor_rollout_ref.model.use_remove_padding=True",  # verl's default: rows in one sequence
)
SECONDS = re.compile("seconds_|_per_second")


def _finished(done: Done) -> Done:
    assert done.code == 0, done.output[-5000:]
    return done


@pytest.fixture(scope="session")
def paper(tmp_path_factory) -> Done:
    return _finished(run(tmp_path_factory.mktemp("verl") / "paper", *LONG, COPY_AT_SAVE="3"))


@pytest.fixture(scope="session")
def resumed(paper) -> Done:
    """From what a kill leaves right after verl named step 3 its latest, within an epoch."""
    out = paper.out.with_name("paper-copy")
    latest = out / "checkpoints" / "latest_checkpointed_iteration.txt"
    assert latest.read_text() == "3" and load(out / "run").run.status == "running"
    return _finished(run(out, *LONG))


@pytest.fixture(scope="session")
def truth(tmp_path_factory) -> Done:
    """The release's guard, which masks, on one rank; a rollout server exits after some steps."""
    out = tmp_path_factory.mktemp("verl") / "truth"
    return run(out, *TRUTH, DIE_AFTER_STEP=str(UNTIL_DEATH))


def test_the_runs_have_what_the_other_tests_are_about(paper, truth):
    for done, steps in ((paper, N_STEPS), (truth, UNTIL_DEATH)):
        visits = done.trace.visits
        assert visits["skipped"].any() and (visits["weight"] < 1).any()
        assert (visits["beta"] > 0).any() and visits["flipped"].any()
        assert len(done.trace.steps) == steps
    assert paper.trace.run.status == "finished"


def test_the_trace_is_one_that_readers_take(paper, tmp_path):
    trace = paper.trace
    first = trace.visits[trace.visits["visit"] == 0]
    assert first["problem"].tolist() == list(range(9))
    later = trace.visits[trace.visits["visit"] > 0]
    # Problem 8 is left out of every epoch: 8 problems in 2 batches, in the order of the file.
    assert (later.groupby("problem")["visit"].apply(list) == [[1, 2, 3]] * 8).all()
    counts = trace.votes.groupby(["visit", "problem"])["count"].sum()
    merged = trace.visits.set_index(["visit", "problem"])
    assert (counts + merged["n_unparseable"] == 8).all()
    assert trace.evals["step"].tolist() == [2, 4, 6]
    assert trace.evals["pass_at_1"].between(0, 1).all()
    steps = trace.steps
    assert (steps["update_norm"] > 0).all() and (steps["mismatch_kl"].abs() < 1e-4).all()
    assert (steps["n_skipped"] == later.groupby("step")["skipped"].sum().to_numpy()).all()
    assert (steps["seconds_guard"] < 0.01 * steps["seconds_step"]).mean() > 0.5
    page = tmp_path / "report.html"
    assert report([str(paper.out / "run"), "--output", str(page)]) == 0
    assert "verl 0.9" in page.read_text()


def test_verl_runs_synchronously_and_leaves_the_order_of_rows_alone(paper):
    assert "training/rollout_probs_diff_mean" in paper.output  # all metrics of verl are there
    assert "global_seqlen" not in paper.output  # those of its own `_balance_batch` are not
    assert not list(paper.out.glob("checkpoints/*/transfer_queue"))


@pytest.mark.parametrize("name", ["paper", "truth"])
def test_a_step_of_verl_is_the_trainers(name, request):
    """Weights within 1e-6 of the trainer's own loss and AdamW, from verl's checkpoint before."""
    done: Done = request.getfixturevalue(name)
    visits = done.trace.visits
    for step in done.trace.steps["step"]:
        own = visits[visits["step"] == step]
        model, moved = step_again(done, int(step))
        after = done.shards("model", int(step))
        worst = max(
            float((whole([shard[n] for shard in after]) - p).abs().max())
            for n, p in model.named_parameters()
        )
        # The first AdamW step makes moves of noise in the least gradients.
        assert worst < (1e-5 if step == 1 else 1e-6), (step, worst)
        # The norm of a step that was left out is 0.
        norm = float(done.trace.steps.set_index("step")["update_norm"][step])
        assert norm == pytest.approx(sum(moved) / 4, rel=1e-3)
        assert len(moved) == (~own["skipped"]).sum() if name == "paper" else len(moved) == 4


@pytest.mark.parametrize(
    ("name", "ranks", "n_steps"), [("paper", 2, N_STEPS), ("truth", 1, UNTIL_DEATH)]
)
def test_decisions_are_the_supervisors_outside_of_verl(name, ranks, n_steps, request, tmp_path):
    """The responses of every step, in another order of rows, to a guard that verl never saw."""
    done: Done = request.getfixturevalue(name)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    settings = from_values(done.trace.run.config, TrainConfig, "run.json").settled()
    made = GuardedRun(settings, list(range(9)), [p.answer for p in problems(9)])
    rng = random.Random(0)

    def read(number):
        dumped = done.dumped(f"votes{number}")
        texts = tokenizer.batch_decode([row.tolist() for row in dumped["tokens"]])
        rows = list(zip(dumped["keys"], texts, dumped["index"], strict=True))
        rng.shuffle(rows)
        texts, places = {k: text for k, text, _ in rows}, {k: i for k, _, i in rows}
        return made.read(texts, votes_of(texts, places))

    with made.opened(tmp_path / "again", "tiny", "verl"):
        made.prime(map(read, range(3)))
        steps = []
        for step in range(1, n_steps + 1):
            voted = read(step + 2)
            made.step = step - 1
            steps.append(made.visit(voted, dict.fromkeys(chain(*voted.keys), 1)))
    visits = done.trace.visits
    assert visits["step"].max() == n_steps
    pd.testing.assert_frame_equal(load(tmp_path / "again").visits, visits)
    for step, paid in enumerate(steps, 1):
        # What each row was trained with, wherever verl had put it, and beside which others.
        rows = done.dumped(f"step{step}")
        streams = zip(rows["advantages"], rows[MINORITY], strict=True)
        pairs = [[float(one[0]), float(two[0])] for one, two in streams]
        found = dict(zip(rows["keys"], pairs, strict=True))
        assert found.keys() == set(paid.keys)
        for key in paid.keys:
            np.testing.assert_allclose(found[key], paid.columns[key][:2], rtol=1e-6)
        parts = np.array(rows["keys"]).reshape(ranks, len(paid.minis), -1)
        for number, mini in enumerate(paid.minis):
            assert set(parts[:, number].flat) == {paid.keys[row] for row in mini}


def test_the_truth_is_trained_on_at_half_the_learning_rate(truth):
    """The trace's labels stay those of the votes."""
    trace = truth.trace
    assert (trace.visits["visit"] == 0).sum() == 9 and not trace.visits["label_correct"].all()
    assert (trace.steps["reward_correct"] == 1).all()
    np.testing.assert_allclose(trace.steps["lr"], 0.5 * trace.run.config["lr"])
    assert trace.run.extra["step_factor"] == 0.5


def test_a_run_that_was_killed_ends_as_one_never_stopped(paper, resumed):
    for kind in ("model", "optim"):
        for one, two in zip(
            paper.shards(kind, N_STEPS), resumed.shards(kind, N_STEPS), strict=True
        ):
            torch.testing.assert_close(_local(one), _local(two), rtol=0, atol=0)
    guards = [d.out / "checkpoints" / f"global_step_{N_STEPS}" / "guard" for d in (paper, resumed)]
    one, two = (load_file(folder / "guard.safetensors") for folder in guards)
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    assert len({(folder / "answers.json").read_bytes() for folder in guards}) == 1
    for table in ("visits", "steps", "evals", "votes", "answers"):
        one, two = (getattr(d.trace, table) for d in (paper, resumed))
        # The server batches requests as they come in, which rounds its own log-probs otherwise;
        # verl trains on those of the trainer.
        kept = [name for name in one if not SECONDS.search(name) and name != "mismatch_kl"]
        pd.testing.assert_frame_equal(one[kept], two[kept])
    assert len(resumed.trace.run.extra["resumed"]) == 1


def _local(values):
    """All tensors of a rank's shard."""
    if isinstance(values, dict):
        return {str(k): _local(v) for k, v in values.items() if not isinstance(v, str)}
    if isinstance(values, list | tuple):
        return [_local(v) for v in values]
    return values.to_local() if hasattr(values, "to_local") else values


def test_a_rollout_server_that_exits_ends_the_run_by_name(truth):
    assert truth.code != 0 and "hf_cpu_server_0" in truth.output
    assert "rollout server" in truth.trace.run.error
    ended = pd.Timestamp(truth.trace.run.ended).timestamp()
    assert ended - (truth.out / "dump" / "died").stat().st_mtime < 60


def test_the_program_of_the_page_trains(tmp_path):
    """As printed, but for the model and for the settings with which verl runs on a CPU."""
    page = (ROOT / "docs" / "your-trainer.md").read_text()
    (program,) = re.findall(r"\n## verl\n.*?```sh\n(.*?)```", page, re.DOTALL)
    program = program.replace("path/to/model", str(MODEL)).replace(
        "bash run.sh", 'bash run.sh "$@"'
    )
    rows = [{"id": p.id, "prompt": p.prompt, "answer": p.answer} for p in problems(N_PROBLEMS)]
    (tmp_path / "problems.json").write_text(json.dumps(rows))
    printed = ("+guard.", "data.train_files", "data.val_files")
    own = [word for word in settings(tmp_path) if not word.startswith(printed)]
    own = [word.lstrip("+") if "attn_implementation" in word else word for word in own]
    # The model knows no request for a box.
    template = "{% for m in messages %}{{ m.content.split('=')[0] }}={% endfor %}"
    own[-1] = f'actor_rollout_ref.model.custom_chat_template="{template}"'
    own += ["guard.n_votes=8", "trainer.n_gpus_per_node=1", "trainer.total_epochs=1"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for _ in range(3):  # Ray gives up after 30 s, too few on a busy machine
        done = started(["bash", "-euc", program, "page", *own], tmp_path, PATH=path)
        if "timed out during startup" not in done.output:
            break
    trace = load(_finished(done).out / "runs" / "verl")
    assert (trace.run.arm, trace.run.status) == ("memory", "finished")
    assert len(trace.steps) == 2 and (trace.steps["update_norm"] > 0).all()
    later = trace.visits[trace.visits["visit"] > 0]
    assert len(later) == 8 and (later["match_rate"] > 0).all()
