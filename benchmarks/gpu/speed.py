"""Sections on speed: the machine's bounds, the output head, updates, decoding by transformers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from record import Report
from shapes import (
    Setup,
    attempt,
    make_model,
    make_optimizer,
    scripted_groups,
    train_config,
    update_bytes,
)
from torch import Tensor

from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import WideHead, add_product
from real.plan.memory import multiplied, update_flops
from real.settings.config import TrainConfig
from real.update.head import Head, head_scores
from real.update.optimizer import Step


def ceilings(setup: Setup, report: Report) -> None:
    """Bounds of this machine."""
    n = setup.pick(8192, 64)
    left, right = (torch.randn(n, n, device=setup.device, dtype=torch.bfloat16) for _ in range(2))
    seconds = setup.seconds(lambda: left @ right, repeats=10, warm=3)
    report.add("bfloat16 products", 2 * n**3 / seconds / 1e12, "TFLOP/s")
    size = setup.pick(2**32, 2**16)
    far = torch.zeros(size, dtype=torch.uint8, device=setup.device)
    seconds = setup.seconds(_copy(torch.empty_like(far), far), repeats=5)
    report.add("copy within the GPU, read and written", 2 * size / seconds / 1e9, "GB/s")
    near = {"pageable": torch.zeros(size, dtype=torch.uint8)}
    if not setup.dry:
        near["pinned"] = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    for name, host in near.items():
        to, back = (setup.seconds(work, 2) for work in (_copy(far, host), _copy(host, far)))
        report.add(f"to the GPU, {name} memory", size / to / 1e9, "GB/s")
        report.add(f"from the GPU, {name} memory", size / back / 1e9, "GB/s")
    values = near["pageable"].numpy()[: size // 4]
    path = setup.folder / "bytes"
    seconds = setup.seconds(lambda: values.tofile(path))
    report.add("write to a file", len(values) / seconds / 1e9, "GB/s")
    path.unlink()
    seconds = setup.seconds(lambda: hashlib.sha256(values.data), warm=0)
    report.add("SHA-256", len(values) / seconds / 1e9, "GB/s")


def _copy(to: Tensor, source: Tensor) -> Callable[[], object]:
    return lambda: to.copy_(source)


def head(setup: Setup, report: Report) -> None:
    """The output head of the 7B shape alone, forward and backward."""
    vocabulary, width, n = setup.pick((152_064, 3584, 16_384), (512, 64, 64))
    options: Any = {"device": setup.device, "dtype": torch.bfloat16}
    layer = WideHead(width, vocabulary, bias=False, **options)
    hidden = torch.randn(n, width, requires_grad=True, **options)
    targets = torch.randint(vocabulary, (n,), device=setup.device)
    for power in setup.pick((25, 27, 28, 29), (12, 14)):

        def work(chunk: int = 2**power) -> None:
            scores = head_scores(Head(layer), hidden, targets, 0.6, chunk_elements=chunk)
            scores.logprobs_n.sum().backward()

        setup.peak()
        seconds = setup.seconds(work, 3)
        report.add(f"chunks of 2^{power} logits", 1e6 * seconds / n, "us/token")
        report.add(f"chunks of 2^{power} logits, peak", setup.peak() / 1e9, "GB")
    rows = n // 8
    grad = torch.randn(vocabulary, rows, **options)
    part = hidden.detach()[:rows]
    total = torch.zeros(vocabulary, width, device=setup.device)
    ways: dict[str, Callable[[], object]] = {
        "inside the product": lambda: add_product(total, grad, part),
        "after it": lambda: total.add_(grad @ part),
    }
    for name, way in ways.items():
        seconds = setup.seconds(way, 5)
        report.add(f"gradient summed {name}", 1e6 * seconds / rows, "us/token")


class Update(NamedTuple):
    """A setting whose update is measured."""

    shape: str
    checkpointing: bool
    micro_tokens: int
    rank: int = 0
    """Of adapters."""
    varied: bool = False
    """Responses of 100 to 3,000 tokens, in place of 3,072 each."""
    profiled: bool = False

    @property
    def name(self) -> str:
        """Name in the measures."""
        lengths = "100 to 3,000 tokens" if self.varied else "3,072 tokens"
        kept = "" if self.checkpointing else ", kept layers"
        return f"{self.shape}, {lengths}, {self.micro_tokens // 1024}k a pass{kept}"

    def config(self, setup: Setup) -> TrainConfig:
        """Return the settings of training."""
        return train_config(
            setup,
            gradient_checkpointing=self.checkpointing,
            micro_tokens=setup.pick(self.micro_tokens, 128),
            lora_rank=self.rank,
        )


UPDATES = (
    Update("3B", True, 16_384, profiled=True),
    Update("3B", False, 8192),
    Update("3B", True, 32_768),
    Update("3B", True, 8192),
    Update("3B", True, 8192, varied=True),
)
ADAPTERS = (Update("7B", True, 16_384, rank=16),)


def update(setup: Setup, report: Report) -> None:
    """Updates of the 3B shape, all weights trained."""
    chosen = setup.pick(UPDATES, (UPDATES[0], UPDATES[-1]))
    shares = [share for one in chosen if (share := _measured(setup, report, one)) is not None]
    report.target("share of the peak, best of these", max(shares, default=0.0), at_least=0.4)


def adapters(setup: Setup, report: Report) -> None:
    """Updates of the 7B shape through adapters of rank 16."""
    for one in ADAPTERS:
        _measured(setup, report, one)


def _measured(setup: Setup, report: Report, one: Update) -> float | None:
    """Report a setting, or why it was left out; returns its share of the GPU's peak."""
    config = one.config(setup)
    need = update_bytes(setup, one.shape, config)
    return attempt(setup, report, one.name, need, partial(_update, setup, report, one, config))


def _update(setup: Setup, report: Report, one: Update, config: TrainConfig) -> float:
    """Report one setting's seconds; returns its share of the GPU's peak."""
    lengths = torch.full(setup.pick((1, 32), (1, 4)), setup.pick(3072, 24))
    if one.varied:
        lengths = torch.linspace(*setup.pick((100, 3000, 32), (8, 24, 4))).long()[None]
    optimizer, words = make_optimizer(setup, one.shape, config), one.name
    vocabulary = optimizer.model.config.vocab_size
    groups = scripted_groups(setup, lengths, vocabulary, setup.pick(150, 8))
    taken: list[Step] = []
    setup.peak()
    seconds = setup.seconds(lambda: taken.append(optimizer.step(groups)))
    n_inputs = taken[-1].n_inputs
    share = update_flops(multiplied(optimizer.model), config) * n_inputs / seconds / setup.flops
    report.check(f"{words}: steps not taken", sum(not step.taken for step in taken), 0)
    report.add(f"{words}: update", seconds, "s")
    report.add(f"{words}: tokens", n_inputs / seconds, "1/s")
    report.add(f"{words}: share of the peak", share)
    report.add(f"{words}: peak memory", setup.peak() / 1e9, "GB")
    if one.profiled:
        report.add(f"{one.shape}: AdamW", setup.seconds(lambda: optimizer._adamw.step(0.0)), "s")
        _profiled(setup, report, lambda: optimizer.step(groups))
    return share


def _profiled(setup: Setup, report: Report, work: Callable[[], object]) -> None:
    """Report the kernels that take the most time."""
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CPU if setup.dry else ProfilerActivity.CUDA
    with profile(activities=[kind]) as profiled:
        work()
        setup.wait()
    field = "self_cpu_time_total" if setup.dry else "self_device_time_total"
    events = sorted(profiled.key_averages(), key=lambda event: -getattr(event, field))
    total = sum(getattr(event, field) for event in events)
    for event in events[:15]:
        share = getattr(event, field) / total
        report.add(f"kernel {event.key[:70]}", 100 * share, "%")


def decoding(setup: Setup, report: Report) -> None:
    """The transformers engine at 512 rows, prompts of one length and of two."""
    for shape in setup.pick(("0.5B", "3B"), ("0.5B",)):
        model = make_model(setup, shape)
        rows, length = setup.pick((512, 64), (8, 6))
        engine = TransformersEngine(model, max_rows=rows)
        for name, longer in (("no mask", 0), ("mask", 7)):
            prompts = [list(range(40, 60 + longer * (i % 2))) for i in range(8)]
            draws = torch.Generator(setup.device).manual_seed(0)
            work = partial(engine.sample, prompts, rows // 8, Sampling(length, 0.6), draws)
            report.add(f"{shape}, {name}", rows * length / setup.seconds(work), "tokens/s")
