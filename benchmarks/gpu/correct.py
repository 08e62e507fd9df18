"""Sections on right numbers and right endings."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from record import Report
from shapes import Setup, join_alone
from torch import Tensor

from guard_core import GuardConfig
from lab.base.columns import where
from lab.base.errors import UserError
from lab.trace.manifest import read_manifest
from lab.trace.trace import Trace
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import load_policy
from real.ranks.distributed import end_rank
from real.record.checkpoint import read_file
from real.settings.config import TrainConfig
from real.settings.groups import UpdateSettings
from real.settings.presets import preset
from real.tiny import CHECKPOINT, problems
from real.tiny.tasks import encode
from real.trainer import resume, train
from real.update.grpo import backward
from real.update.logprobs import Scorer, group_scores
from real.update.packing import Group, unpaid

ROOT = Path(__file__).parents[2]
WHOLE = 2**20
"""Tokens of a pass that holds all rows."""


def numbers(setup: Setup, report: Report) -> None:
    """Log-probs, loss and gradients of the tiny model against double precision on the CPU."""
    groups = _sampled_groups()
    exact = _gradients(_scorer("cpu", double=True), groups)
    single = _scorer(setup.device.type)
    near = [_moved(group, setup.device) for group in groups]
    all_rows = _gradients(single, near)
    report.check("loss, single precision", abs(all_rows[0] - exact[0]), 1e-5)
    report.check("gradient, single precision", _gap(all_rows[1], exact[1]), 1e-4)
    one_row = _gradients(single, near, max_tokens_per_microbatch=32)
    report.check("gradient, row by row and at once", _gap(one_row[1], all_rows[1]), 1e-4)
    single.bundle_width = None
    alone = _gradients(single, near)
    report.check("gradient, prompts shared and not", _gap(alone[1], all_rows[1]), 1e-4)
    how = UpdateSettings(temperature=0.6, max_tokens_per_microbatch=WHOLE)
    for head in ("float32", "model"):
        scorer = _scorer(setup.device.type, "bfloat16", head=head)
        rounded = group_scores(_scorer("cpu", "bfloat16", double=True), groups, config=how)
        pairs = zip(group_scores(scorer, near, config=how), rounded, strict=True)
        gap = max(float((a.cpu() - b).abs().nan_to_num().max()) for a, b in pairs)
        report.add(f"log-probs, bfloat16, logits in {head}: largest error", gap, "nats")
        grads = _gradients(scorer, near)[1]
        report.add(f"gradient, bfloat16, logits in {head}", _gap(grads, exact[1]))


def _sampled_groups() -> list[Group]:
    """Groups of the tiny model's own responses, whose policy has moved a little since."""
    policy = load_policy(CHECKPOINT, "cpu")
    prompts = [encode(one.prompt) for one in problems(4)]
    engine = TransformersEngine(policy.model, policy.eos_token_ids, policy.pad_token_id)
    draws = torch.Generator().manual_seed(0)
    drawn = engine.sample(prompts, 8, Sampling(22, 1.0), draws)
    moved_PNT = drawn.logprobs_PNT + 0.1 * torch.randn(drawn.logprobs_PNT.shape, generator=draws)
    rows = zip(prompts, drawn.tokens_PNT, moved_PNT, drawn.lengths_PN, strict=True)
    ramp_K = torch.linspace(-1, 1, 8)
    streams = {"majority_K": 0.8 * ramp_K, "minority_K": 0.2 * ramp_K.flip(0)}
    return [replace(unpaid(*row), **streams) for row in rows]


def _scorer(
    device: str, dtype: str = "float32", double: bool = False, head: str = "float32"
) -> Scorer:
    model = load_policy(CHECKPOINT, device, dtype, head_dtype=head).model
    return Scorer(model.double() if double else model)


def _moved(group: Group, device: torch.device) -> Group:
    tensors = {n: v for n in Group.__slots__ if isinstance(v := getattr(group, n), Tensor)}
    return replace(group, **{name: value.to(device) for name, value in tensors.items()})


def _gradients(
    scorer: Scorer, groups: list[Group], max_tokens_per_microbatch: int = WHOLE
) -> tuple[float, Tensor]:
    """Loss, and gradient of all weights in double precision."""
    scorer.zero_grad()
    config = TrainConfig(temperature=1.0, max_tokens_per_microbatch=max_tokens_per_microbatch)
    done = backward(scorer, groups, config)
    grads = [p.grad.double().flatten().cpu() for p in scorer.parameters() if p.grad is not None]
    return done.loss, torch.cat(grads)


def _gap(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def tiny(setup: Setup, report: Report) -> None:
    """The tiny task from start to end, the same killed and resumed, and messages of failures."""
    config = _short(setup)
    _resumed(setup, report, config)
    _refusal(report, "lr of 1e30", replace(config, lr=1e30, max_bad_steps=2))
    if not setup.dry:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1e-4)
        _refusal(report, "no GPU memory", config)


def variants(setup: Setup, report: Report) -> None:
    """Short runs by vLLM in bfloat16 of what no other section trains."""
    config = replace(_short(setup), **setup.pick({"engine": "vllm", "dtype": "bfloat16"}, {}))
    adapted, ahead = replace(config, lora_rank=8), replace(config, async_level=1)
    for name, changed in {"adapters": adapted, "one batch ahead": ahead}.items():
        steps = train(changed, progress=False).steps
        report.check(f"{name}: steps refused", int(steps["n_refused"].sum()), 0)
        report.add(f"{name}: mismatch_kl, mean", float(steps["mismatch_kl"].mean()))
        report.add(f"{name}: seconds of a step", float(steps["seconds_step"].median()), "s")


def _short(setup: Setup) -> TrainConfig:
    """Return a few batches of the tiny task."""
    return TrainConfig(
        n_problems=setup.pick(16, 4),
        n_votes=setup.pick(16, 8),
        n_samples=setup.pick(8, 4),
        batch_size=2,
        epochs=setup.pick(2, 3),
        eval_samples=2,
        checkpoint_every=1,
        max_rows=64,  # for fewer CUDA graphs
        device=setup.pick("cuda", "cpu"),
    )


def _resumed(setup: Setup, report: Report, config: TrainConfig) -> None:
    whole, broken = setup.folder / "whole", setup.folder / "broken"
    _killed(setup, config, broken)
    expected = train(config, whole, progress=False)
    same = expected.visits.equals(resume(broken, progress=False).visits)
    report.add("visits of the resumed run", "the same" if same else "different")
    last = [max((run / "checkpoints").iterdir()) / "model.safetensors" for run in (whole, broken)]
    a, b = (read_file(path) for path in last)
    gap = max(float((a[name] - b[name]).abs().max()) for name in a)
    report.add("weights of the resumed run: largest difference", gap)


def _killed(setup: Setup, config: TrainConfig, folder: Path) -> None:
    """Start a run in a process of its own and kill it at its third checkpoint, or soon after."""
    process = setup.process(train, config, folder, False)
    checkpoints = folder / "checkpoints"
    while process.is_alive() and not any(p.name >= "step-000003" for p in checkpoints.glob("s*")):
        time.sleep(0.001)
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the run ended before it was killed, exit code {process.exitcode}")


def _refusal(report: Report, name: str, config: TrainConfig) -> None:
    try:
        train(config, progress=False)
    except UserError as error:
        report.add(f"message: {name}", str(error))
    else:
        raise RuntimeError(f"{name}: the run did not end with a message")


CPU_ACCURACY = 0.972
"""Final pass@1 of the arm `truth` at 3e-4, mean of ten seeds on a CPU (docs/protocol.md)."""


def learns(setup: Setup, report: Report) -> None:
    """The tiny task trained on true answers by vLLM in bfloat16, to the accuracy of a CPU.

    A wrong sign, stale weights in the engine, or a loss of another scale would each show here.
    """
    config = TrainConfig(
        labels="truth",
        guard=GuardConfig.off(),
        epochs=setup.pick(12, 1),
        problem_seed=7,
        seed=101,
        eval_every=3,
        **setup.pick({"engine": "vllm", "dtype": "bfloat16", "device": "cuda"}, {}),
        **setup.pick({}, {"n_problems": 8, "n_votes": 8, "n_samples": 4}),
    )
    accuracy = float(_evaluated(setup, report, config).evals["pass_at_1"].iloc[-1])
    report.target("pass@1 after training", accuracy, at_least=CPU_ACCURACY - 0.05)


def smollm2(setup: Setup, report: Report) -> None:
    """A pretrained model learns products by vLLM from true answers, along the CPU's curve.

    SMOLLM2 names the folder of SmolLM2-135M-Instruct, which `bring.sh` makes.
    """
    folder = os.environ.get("SMOLLM2", "")
    if not (folder or setup.dry):
        report.add("left out", "SMOLLM2 names no folder of the model")
        return
    changes: dict[str, Any] = {"eval_every": 4, "labels": "truth", "seed": 1}
    config = preset("smollm2/multiplication", folder or "tiny", **changes)
    if setup.dry:
        sizes: dict[str, Any] = {"n_problems": 4, "n_held_out": 0, "n_votes": 4, "n_samples": 2}
        config = replace(config, **sizes, epochs=2, dtype="float32", max_mismatch=9.0)
    else:
        config = replace(config, engine="vllm", device="cuda", threads=None)
    trace = _evaluated(setup, report, replace(config, guard=GuardConfig.off()))
    right_V = trace.visits.groupby("epoch")["label_accuracy"].mean().to_numpy()
    gap_V = np.abs(right_V - cpu_curve()[: len(right_V)])
    report.add("right votes by visit", " ".join(f"{right:.3f}" for right in right_V))
    report.target("right votes before training: distance from the CPU's", gap_V[0], at_most=0.1)
    report.target("right votes at the end: distance from the CPU's", gap_V[-1], at_most=0.1)


def cpu_curve() -> NDArray[np.float64]:
    """Return the share of right votes at each visit under true labels, mean of two CPU runs."""
    rows = pd.read_csv(ROOT / "docs" / "data" / "language-model.csv")
    runs = where(rows, task="multiplication", arm="truth", lr=3e-5)["accuracy_by_visit"]
    return np.mean([[float(share) for share in text.split()] for text in runs], axis=0)


def _evaluated(setup: Setup, report: Report, config: TrainConfig) -> Trace:
    """Train, and report every evaluation as soon as it is made."""
    folder = Path(tempfile.mkdtemp(dir=setup.folder)) / "run"
    points: list[tuple[int, float]] = []

    def told(_: float = 1.0) -> None:
        found = read_manifest(folder).extra.get("evaluation", {}).get("points", [])
        for step, accuracy in found[len(points) :]:
            report.add(f"pass@1 at step {step}", accuracy)
        points[:] = found

    trace = train(config, folder, progress=told)
    told()
    report.add("mismatch_kl, mean", float(trace.steps["mismatch_kl"].mean()))
    report.check("steps refused", int(trace.steps["n_refused"].sum()), 0)
    return trace


def ends(setup: Setup, report: Report) -> None:
    """The end of a rank with an error while its GPU is busy and NCCL has work queued."""
    errors = setup.folder / "ends.txt"
    began = time.monotonic()
    process = setup.process(_fail, setup, errors)
    process.join()
    report.check("from the start to the end", time.monotonic() - began, 30.0, "s")
    report.add("exit code", process.exitcode)
    report.add("message", (errors.read_text().strip().splitlines() or ["none"])[-1])


def _fail(setup: Setup, errors: Path) -> None:
    sys.stderr = errors.open("w")
    join_alone(setup)
    try:
        ones = torch.ones(1, device=setup.device)
        dist.all_reduce(ones)
        if not setup.dry:
            spin: Any = torch.cuda._sleep
            spin(2**38)  # minutes
        dist.all_reduce(ones, async_op=True)
        raise UserError(f"planned failure, backend {dist.get_backend()}")
    except BaseException as error:
        end_rank(0, error)
