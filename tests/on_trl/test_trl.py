"""The trainer for TRL against the trainer of this project, its run folder and its checkpoints."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from given_votes import (
    GUARD,
    PROBLEMS,
    TOKENIZER,
    Given,
    K,
    N,
    V,
    data,
    response,
    settings,
    tokens_of,
    train,
    trainer,
)
from peft import LoraConfig
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm, Qwen2RotaryEmbedding

import lab
from lab.__main__ import main as report
from lab.base.errors import UserError
from real.settings.config import TrainConfig
from real.tiny import CHECKPOINT
from real.trl import GuardGRPOTrainer
from real.update.grpo import backward, initial_reference
from real.update.logprobs import Scorer
from real.update.packing import Group
from real.vote.decide import Supervisor, pay

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-trainer.md").read_text()


def shifted(model):
    """The model with other weights, which are the same at every call."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter.mul_(1 + 0.1 * noise)
    return model.eval()


def by_hand(order, kl_coef):
    """Rows of the trace, and gradients of all steps, by the trainer's own parts."""
    given = {"n_votes": V, "n_samples": K, "guard": GUARD, "answer_check": "strings", "seed": 42}
    config = TrainConfig(temperature=1.0, kl_coef=kl_coef, **given).settled()
    model, other = (
        AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float64).eval()
        for _ in range(2)
    )
    reference = initial_reference(Scorer(shifted(other)))
    supervisor = Supervisor(config, [p.answer for p in PROBLEMS])

    def texts(p, visit):
        return [response(PROBLEMS[p].prompt, visit, vote) for vote in range(V)]

    first = [supervisor.answer_ids.ids(p, texts(p, 0)) for p in range(N)]
    supervisor.prime(np.stack(first), {})
    rows, gradients, visits = [], [], np.zeros(N, int)
    for batch in order:
        places = np.sort(batch)
        visits[places] += 1
        said = {p: texts(p, visits[p]) for p in places.tolist()}
        answers = np.stack([supervisor.answer_ids.ids(p, said[p]) for p in said])
        decided = supervisor.decide(places, answers, visits[places], {})
        streams = pay(supervisor.rule, decided, config.guard)
        rows.append(decided.rows)
        for p in batch:
            at = places.tolist().index(p)
            model.zero_grad(set_to_none=True)
            if not streams.drop[at]:
                both = (torch.from_numpy(s[at]) for s in (streams.majority, streams.minority))
                group = on_policy(model, PROBLEMS[p].prompt, said[p][:K], *both)
                group = replace(group, weight=float(streams.weight[at]))
                backward(Scorer(model), [group], config, reference=reference)
            gradients.append(None if streams.drop[at] else flat(p.grad for p in model.parameters()))
    return rows, gradients


def flat(gradients):
    """One vector, without those that nothing gave a value."""
    return torch.cat([torch.zeros(0), *(g.flatten() for g in gradients if g is not None)])


def on_policy(model, prompt, texts, majority, minority):
    """A group with the log-probs of the model that is trained, so that all ratios are 1."""
    prompt_L = torch.tensor(TOKENIZER(prompt).input_ids)
    rows = [torch.tensor(tokens_of(text)) for text in texts]
    tokens_KT, lengths_K = pad_sequence(rows, batch_first=True), torch.tensor([*map(len, rows)])
    n, ids = len(prompt_L), torch.cat([prompt_L.expand(K, -1), tokens_KT], 1)
    with torch.no_grad():
        logprobs = model(ids).logits[:, n - 1 : -1].log_softmax(-1)
    old_KT = logprobs.gather(2, tokens_KT[:, :, None])[:, :, 0]
    return Group(prompt_L, tokens_KT, old_KT, lengths_K, majority, minority)


def norm(layer, hidden):
    """Qwen2RMSNorm without its cast to single precision."""
    spread = hidden.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon
    return layer.weight * hidden * torch.rsqrt(spread)


def turn(layer, hidden, position_ids):
    """Qwen2RotaryEmbedding without its cast, since TRL's padding on the left moves positions."""
    angles = position_ids[..., None].double() * layer.inv_freq
    both = torch.cat([angles, angles], -1)
    return both.cos(), both.sin()


class Head:
    """TRL's chunked head (`trl.kernels.chunked_logprob`), which sums in single precision."""

    @staticmethod
    def apply(hidden, weight, bias, labels, *_):
        logprobs = torch.nn.functional.linear(hidden, weight, bias).log_softmax(-1)
        entropies = -(logprobs.exp() * logprobs).sum(-1).detach()
        return logprobs.gather(1, labels[:, None])[:, 0], entropies, None, None, None


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_decisions_and_gradients_are_those_of_the_trainer(kl_coef, tmp_path, monkeypatch):
    """The same start and votes; the rate is too small to move a weight in double precision."""
    monkeypatch.setattr(Qwen2RMSNorm, "forward", norm)
    monkeypatch.setattr(Qwen2RotaryEmbedding, "forward", turn)
    monkeypatch.setattr("trl.trainer.utils._ChunkedLogProbFunction", Head)
    args = settings(tmp_path / "out", learning_rate=1e-30, max_grad_norm=1e9, beta=kl_coef)
    run = trainer(args, Given, torch.float64)
    if kl_coef:
        shifted(run.ref_model.double())
    run.train()
    trace = lab.load(tmp_path / "out-guard")
    assert (trace.steps["kl"] > 0).all() if kl_coef else "kl" not in trace.steps
    visits = trace.visits.query("visit > 0")
    place = {problem.prompt: n for n, problem in enumerate(PROBLEMS)}
    order = [[place[prompt] for prompt in prompts] for prompts in run.batches[2:]]
    rows, gradients = by_hand(order, kl_coef)
    for step, (expected, (_, found)) in enumerate(zip(rows, visits.groupby("step"), strict=True)):
        for name in ("problem", "label", "skipped", "weight", "beta", "flip_rate", "match_rate"):
            np.testing.assert_array_equal(found[name], expected[name], f"{name} {step}")
    assert visits.skipped.any() and (visits.weight < 1).any() and (visits.beta > 0).any()
    assert len(run.gradients) == len(gradients) == 3 * N
    assert 0 < sum(ours is None for ours in gradients) < len(gradients)
    for found, ours in zip(run.gradients, gradients, strict=True):
        theirs = flat(found)
        if ours is None or not len(ours):  # skipped, or with advantages that are all 0
            assert not theirs.any() and (ours is not None or not len(theirs))
            continue
        assert torch.linalg.vector_norm(theirs - ours) <= 1e-12 * torch.linalg.vector_norm(ours)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that samples, with an evaluation and a checkpoint asked for within a batch."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, trained(out)


def trained(out, resume=None, folder=None):
    args = settings(
        out, save_strategy="steps", save_steps=22, num_train_epochs=8, eval_strategy="epoch",
        num_generations_eval=4, per_device_eval_batch_size=16, guard="memory", guard_folder=folder,
    )  # fmt: skip
    run = trainer(args, eval_dataset=data())
    run.train(resume_from_checkpoint=resume)
    return run


def test_the_run_folder_has_what_reports_and_fates_read(whole, tmp_path):
    out, run = whole
    trace = lab.load(f"{out}-guard")
    assert trace.run.status == "finished" and trace.run.arm == "memory"
    assert trace.visits["visit"].value_counts().to_dict() == dict.fromkeys(range(9), N)
    assert trace.steps["step"].tolist() == list(range(1, 17))
    for name in ("lr", "update_norm", "loss", "grad_norm", "clip_fraction", "entropy", "reward"):
        assert np.isfinite(trace.steps[name]).all(), name
    assert (trace.steps["update_norm"] > 0).all()
    assert trace.evals["step"].tolist() == list(range(2, 17, 2))
    assert trace.evals["pass_at_1"].between(0, 1).all()
    assert len(lab.fates(trace.visits)) == N
    assert report([f"{out}-guard", "--output", str(tmp_path / "report.html")]) == 0
    logged = [row for row in run.state.log_history if "guard/majority_ratio" in row]
    assert [row["guard/label_correct"] for row in logged] == pytest.approx(
        trace.steps["label_correct"].tolist()
    )


def test_a_resumed_run_ends_equal(whole, tmp_path):
    out, run = whole
    # Asked for at step 22, within the votes of the sixth batch, and written at its end.
    names = sorted(path.name for path in out.glob("checkpoint-*"))
    assert names == ["checkpoint-24", "checkpoint-44", "checkpoint-64"]
    again = trained(out, resume=str(out / "checkpoint-44"))
    parts = [(r.run.supervisor.tensors(), r.model.state_dict()) for r in (run, again)]
    torch.testing.assert_close(*parts, rtol=0, atol=0)
    trace = lab.load(f"{out}-guard")
    assert trace.steps["step"].tolist() == list(range(1, 17))
    assert [note["step"] for note in trace.run.extra["resumed"]] == [11]
    with pytest.raises(UserError, match="already holds a run"):
        trained(out)


def test_two_processes_train_as_one_does(tmp_path):
    script = Path(__file__).with_name("given_votes.py")
    alone, both = tmp_path / "alone", tmp_path / "both"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run([sys.executable, *torchrun, script, both], check=True, env=environment)
    train(alone, 1)
    one, two = (lab.load(f"{out}-guard") for out in (alone, both))
    columns = ["problem", "visit", "label", "skipped", "weight", "beta"]
    assert one.visits[columns].equals(two.visits[columns])
    assert len(one.evals) == 2 and one.evals.equals(two.evals)
    start = AutoModelForCausalLM.from_pretrained(CHECKPOINT).state_dict()
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (alone, both))
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-5)
    assert any(not torch.equal(start[name], tensor) for name, tensor in theirs.items())


def test_accumulated_passes_give_the_gradient_of_one_and_adapters_train_alone(tmp_path):
    runs = []
    for name, size, passes in (("one", 2 * V, 1), ("four", V // 2, 4)):
        args = settings(
            tmp_path / name, per_device_train_batch_size=size, gradient_accumulation_steps=passes,
            steps_per_generation=2 * passes, num_train_epochs=1, max_grad_norm=1e9,
            learning_rate=1e-30,
        )  # fmt: skip
        torch.manual_seed(0)
        runs.append(trainer(args, Given, peft_config=LoraConfig(r=2, init_lora_weights=False)))
        runs[-1].train()
    one, four = (run.gradients for run in runs)
    assert len(one) == len(four) == 4
    for ours, theirs in zip(one, four, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)
    moved = [name for name, p in runs[0].model.named_parameters() if p.requires_grad]
    assert moved and all("lora" in name for name in moved)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loss_type": "bnpo"}, "loss_type"),
        ({"scale_rewards": "none"}, "scale_rewards = none: set advantage_scale"),
        ({"per_device_train_batch_size": 12, "steps_per_generation": 2}, "whole problems of num"),
        ({"guard": "recommended"}, "beta = 0.0: arm 'recommended' needs 0.05"),
        ({"guard": "scope"}, "rule = scope: works on step_logprob"),
        ({"guard": "averaged"}, "ema_decay = 0.95: TRL has no such thing"),
        ({"max_steps": 6}, "max_steps = 6: must be a multiple of the 4"),
        ({"num_train_epochs": 1.3}, "num_train_epochs = 1.3: ends within the 4 optimizer steps"),
        ({"guard_settings": {"lr": 1.0}}, "guard_settings.lr: no such setting"),
        ({"guard_settings": {"max_mismatch": 1.0}}, "guard_settings.max_mismatch: no such setting"),
        ({"remove_unused_columns": True}, "remove_unused_columns = True: the guard knows a row's"),
        ({"use_liger_kernel": True}, "use_liger_kernel = True"),
        ({"n_samples": 9}, "n_samples = 9"),
    ],
)
def test_what_would_train_on_something_else_is_refused(changed, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        settings(tmp_path, **changed).settled("model", N)


@pytest.mark.parametrize(
    ("name", "value"), [("min_p", 0.2), ("suppress_tokens", [5]), ("no_repeat_ngram_size", 2)]
)
def test_a_model_that_samples_by_settings_of_its_own_is_refused(name, value, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    model.generation_config.typical_p = 1.0  # of no effect
    GuardGRPOTrainer(model, settings(tmp_path), data(), processing_class=TOKENIZER)
    setattr(model.generation_config, name, value)
    with pytest.raises(UserError, match=rf"generation_config.{name} = .* would sample by it"):
        GuardGRPOTrainer(model, settings(tmp_path), data(), processing_class=TOKENIZER)


def test_an_evaluation_within_a_batch_waits_for_its_end(tmp_path):
    """There the row of its step is: one of step 0 is before training."""
    changed = {"eval_strategy": "steps", "eval_steps": 3, "num_train_epochs": 2}
    evals = []
    for out in (tmp_path / "alone", tmp_path / "again"):
        args = settings(out, num_generations_eval=2, **changed)
        run = trainer(args, Given, eval_dataset=data())
        if evals:  # scores of a prediction are none of an evaluation
            run.first = True
            run.predict(data())
        run.train()
        evals.append(lab.load(f"{out}-guard").evals)
    assert evals[0]["step"].tolist() == [1, 2, 3, 4] and evals[0].equals(evals[1])


def test_settings_serve_several_trainers_and_weights_of_16_bits_have_no_norm(tmp_path):
    """A factor on the learning rate acts once; how weights are rounded is not known."""
    words = {"answer_check": "strings", "step_factor": 0.5}
    changed = {"guard_settings": words, "num_train_epochs": 1, "lr_scheduler_type": "constant"}
    args = settings(tmp_path / "out", **changed)
    first, second = trainer(args), trainer(args, dtype=torch.bfloat16)
    assert first.settings == second.settings and args.learning_rate == 3e-4
    second.train()
    steps = lab.load(tmp_path / "out-guard").steps
    assert np.allclose(steps["lr"], 1.5e-4) and steps["update_norm"].isna().all()


def test_answers_are_text_or_numbers_in_one_set_of_each_kind(tmp_path):
    rows = data()
    numbers = rows.remove_columns("answer").add_column("answer", list(map(int, rows["answer"])))
    run = trainer(settings(tmp_path), rows=numbers, eval_dataset=numbers)
    ids = run.run.supervisor.answer_ids
    assert ids.ids(0, [rf"\boxed{{{numbers[0]['answer']}}}"])[0] == ids.truth_id(0)
    assert run.votes([rf"\boxed{{{n}}}" for n in (7, 8)], [7, 7]) == [1.0, 0.0]
    with pytest.raises(UserError, match="eval_dataset: must be one set"):
        trainer(settings(tmp_path), eval_dataset={"tiny": rows})


def test_a_guard_is_an_arm_a_rule_or_settings(tmp_path):
    assert settings(tmp_path, guard="empo").settled("m", N).rule == "empo"
    assert settings(tmp_path, guard="truth").settled("m", N).labels == "truth"
    assert settings(tmp_path, max_steps=116).settled("m", 28).epochs == 5  # 29 of 7 batches each
    assert settings(tmp_path).settled("m", N).guard == GUARD
    assert json.loads(settings(tmp_path).to_json_string())["guard"] == GUARD.to_dict()


def test_the_page_s_program_runs_as_printed(tmp_path):
    (program,) = re.findall(r"```python\n(from datasets.*?)```", PAGE, re.DOTALL)
    assert len(program.splitlines()) <= 15
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=environment)
    assert lab.load(next(tmp_path.glob("*-guard"))).run.status == "finished"
