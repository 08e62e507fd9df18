"""Sections on updates: the plan against what is held, shards of several ranks, speed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from record import PRODUCT, Report
from shapes import Setup, attempt, join_alone, scripted_update, train_config, update_bytes

from real.plan import multiplied
from real.ranks.distributed import whole_tensor
from real.settings.config import TrainConfig
from real.speed import update_flops
from real.update.optimizer import Step

Cases = dict[str, tuple[str, dict[str, Any]]]
"""Name in the measures to the shape of a model and settings of training."""
CASES: Cases = {
    "0.5B": ("0.5B", {}),
    "3B": ("3B", {}),
    "3B, layers kept": ("3B", {"gradient_checkpointing": False, "max_tokens_per_microbatch": 8192}),
    "7B, adapters": ("7B", {"lora_rank": 16}),
    "3B, state in main memory": ("3B", {"offload_optimizer": True}),
}
VARIED = "3B, 100 to 3,000 tokens, 8k a pass"
UPDATES: Cases = {
    "3B, 3,072 tokens, 16k a pass": ("3B", {"max_tokens_per_microbatch": 16_384}),
    "3B, 3,072 tokens, 8k a pass, kept layers": CASES["3B, layers kept"],
    "3B, 3,072 tokens, 32k a pass": ("3B", {"max_tokens_per_microbatch": 32_768}),
    "3B, 3,072 tokens, 8k a pass": ("3B", {"max_tokens_per_microbatch": 8192}),
    VARIED: ("3B", {"max_tokens_per_microbatch": 8192}),
}
_RANK_16 = {"max_tokens_per_microbatch": 16_384, "lora_rank": 16}
ADAPTERS: Cases = {"7B, 3,072 tokens, 16k a pass": ("7B", _RANK_16)}


def ceiling(setup: Setup, report: Report) -> None:
    """A product of bfloat16 matrices, and a copy to the GPU."""
    report.add(PRODUCT, setup.ceiling(), "1/s")
    there = torch.empty(setup.pick(2**30, 2**10), dtype=torch.uint8, pin_memory=not setup.dry)
    here = there.to(setup.device)
    seconds = setup.seconds(lambda: here.copy_(there), repeats=3)
    report.rate("host_link", there.numel() / seconds, "B/s")


def memory(setup: Setup, report: Report) -> None:
    """Planned bytes of an update against the peak of a step with passes of full size."""
    for name, (shape, changes) in CASES.items():
        config = train_config(setup, **changes)
        planned = update_bytes(setup, shape, config)
        report.add(f"{name}: planned", planned / 1e9, "GB")
        setup.free()
        setup.peak()
        done = attempt(setup, report, name, planned, partial(_step, setup, shape, config))
        if setup.dry or done is None:  # only a GPU counts its bytes
            continue
        measured = setup.peak()
        report.add(f"{name}: measured", measured / 1e9, "GB")
        report.target(f"{name}: measured / planned", measured / planned, at_most=1.06)


def step_tokens(config: TrainConfig) -> int:
    """Return the tokens of a step of two passes of full size."""
    return 2 * max(1, config.max_tokens_per_microbatch // config.longest) * config.longest


def _step(setup: Setup, shape: str, config: TrainConfig) -> bool:
    rows = step_tokens(config) // config.longest
    lengths_K = torch.full((rows,), config.max_response_tokens or 1)
    optimizer, groups = scripted_update(setup, shape, config, lengths_K, config.max_prompt_tokens)
    if not optimizer.step(groups).taken:
        raise RuntimeError("the step was not taken")
    return True


def fsdp(setup: Setup, report: Report) -> None:
    """FSDP2 over NCCL with one rank against no shards."""
    join_alone(setup)
    report.add("torch.distributed.get_backend()", dist.get_backend())
    lengths_K = torch.linspace(*setup.pick((100, 1500, 16), (8, 24, 4))).long()
    config = train_config(setup, lr=1e-3)
    updates: dict[str, Any] = {}
    for name, ranks in (("whole", 0), ("shards", 1)):
        optimizer, groups = scripted_update(setup, "0.5B", config, lengths_K, ranks=ranks)
        step = optimizer.step(groups)
        report.add(f"norm of the gradient, {name}", step.grad_norm)
        updates[name] = [whole_tensor(p.detach()).float().cpu() for p in optimizer.parameters]
        del optimizer
    pairs = zip(updates["whole"], updates["shards"], strict=True)
    norms_N2 = torch.tensor([[float((a - b).norm()), float(a.norm())] for a, b in pairs])
    gap, size = norms_N2.norm(dim=0).tolist()
    report.check("weights after a step, shards against whole", gap / size, 1e-3)
    dist.destroy_process_group()


def update(setup: Setup, report: Report) -> None:
    """Updates of the 3B shape, all weights trained, against the speed of a plain product."""
    most, shares, names = setup.ceiling(), [0.0], [*UPDATES]
    for name in setup.pick(names, [names[0], names[-1]]):
        if (done := _measured(setup, report, name, *UPDATES[name])) is not None:
            shares.append(done[0] / most)
            report.add(f"{name}: share of a plain product's speed", shares[-1])
            if name == names[0]:
                report.rate("train_flops", done[1], "1/s")
    report.target("share of a plain product's speed, best of these", max(shares), at_least=0.3)


def adapters(setup: Setup, report: Report) -> None:
    """Updates of the 7B shape through adapters of rank 16."""
    for name, case in ADAPTERS.items():
        _measured(setup, report, name, *case)


def _measured(
    setup: Setup, report: Report, name: str, shape: str, changes: dict[str, Any]
) -> tuple[float, float] | None:
    """Return `_update` of a setting that fits."""
    config = train_config(setup, **changes)
    need = update_bytes(setup, shape, config)
    return attempt(setup, report, name, need, partial(_update, setup, report, name, shape, config))


def _update(
    setup: Setup, report: Report, name: str, shape: str, config: TrainConfig
) -> tuple[float, float]:
    """Report a setting; returns its operations per second, without recomputing and with it."""
    shortest, longest, n = setup.pick((3072, 3072, 32), (24, 24, 4))
    if name == VARIED:
        shortest, longest = setup.pick((100, 3000), (8, 24))
    lengths_K = torch.linspace(shortest, longest, n).long()
    optimizer, groups = scripted_update(setup, shape, config, lengths_K, setup.pick(150, 8))
    taken: list[Step] = []
    setup.peak()
    seconds = setup.seconds(lambda: taken.append(optimizer.step(groups)))
    n_inputs = taken[-1].n_inputs
    n_multiplied = multiplied(optimizer.model)
    # A scoring pass is none of the optimizer's.
    per_token = update_flops(n_multiplied, replace(config, tis_cap=0.0))
    again = 2 * n_multiplied * config.gradient_checkpointing
    report.check(f"{name}: steps not taken", sum(not step.taken for step in taken), 0)
    report.add(f"{name}: update", seconds, "s")
    report.add(f"{name}: tokens", n_inputs / seconds, "1/s")
    report.add(f"{name}: peak memory", setup.peak() / 1e9, "GB")
    return per_token * n_inputs / seconds, (per_token + again) * n_inputs / seconds
