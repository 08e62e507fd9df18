"""Entropies of the real vLLM, compared with those of a pass of the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import real.vote.observe
from lab.arms import arm
from real import TrainConfig, train
from real.engines import make, vllm_host
from real.engines.rollouts import Rollouts, Sampling
from real.engines.token_stats import (
    BatchRows,
    TokenStatsLog,
    fused_stats,
    stats_of_logits,
    stats_processor,
)
from real.engines.vllm_host import VllmEngine
from real.engines.vllm_settings import VllmSettings
from real.update.logprobs import Scorer
from real.vote.observe import token_stats

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [(7 * i) % 30 + 1 for i in range(100)]]
N = 16
FIELDS = ("tokens_PNT", "logprobs_PNT", "lengths_PN", "finished_PN")


class Seen:
    """Events in vLLM: requests that it preempted, rows that it moved."""

    preempted = moved = 0


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def engine(folder: Path, seen: Seen) -> Iterator[VllmEngine]:
    """Room for 8 of 64 responses at once, and a cache that four long ones fill."""
    arguments, update = vllm_host.vllm_arguments, BatchRows.update

    def tight(settings: VllmSettings) -> dict[str, Any]:
        return arguments(settings) | {"num_gpu_blocks_override": 16}

    def counting(self: BatchRows, found: Any) -> None:
        seen.moved += len(found.moved) if found is not None else 0
        update(self, found)

    settings = VllmSettings(
        model=str(folder), max_model_len=256, eos_token_ids=(5,), max_rows=8, stats=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_host, "vllm_arguments", tight)
        patch.setattr(BatchRows, "update", counting)
        made = VllmEngine(settings)
        scheduler = made.host._llm.llm_engine.engine_core.engine_core.scheduler
        preempt = scheduler._preempt_request

        def preempting(*arguments: Any, **named: Any) -> Any:
            seen.preempted += 1
            return preempt(*arguments, **named)

        patch.setattr(scheduler, "_preempt_request", preempting)
        yield made
        made.close()


@pytest.fixture(scope="module")
def model(engine: VllmEngine, tools: Any) -> Any:
    fresh = tools.make_model()
    engine.update_weights(fresh, version=0)
    return fresh


def sample(engine: VllmEngine, sampling: Sampling) -> Rollouts:
    return engine.sample(PROMPTS, N, sampling, torch.Generator().manual_seed(3))


def gap(found: Tensor | None, expected: Tensor) -> float:
    assert found is not None and found.dtype == torch.float64 and found.shape == expected.shape
    assert expected.std() > 0.05
    return float((found - expected).abs().max())


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.5, 0.5)])
def test_vllm_and_a_pass_of_the_trainer_agree(
    engine: VllmEngine, model: Any, seen: Seen, temperature: float, top_p: float
) -> None:
    seen.preempted = seen.moved = 0
    rollouts = sample(engine, Sampling(120, temperature, top_p, stats=True))
    assert len(rollouts.lengths_PN.unique()) > 10 and rollouts.finished_PN.any()
    assert seen.preempted > 0 and seen.moved > 0
    entropy, certainty = token_stats(Scorer(model), PROMPTS, rollouts, temperature, 4096)
    assert gap(rollouts.entropy_PV, entropy) < 1e-5
    assert gap(rollouts.certainty_PV, certainty) < 1e-5


def test_asking_changes_no_bit_of_the_samples(engine: VllmEngine, model: Any) -> None:
    asked = sample(engine, Sampling(60, 0.7, stats=True))
    plain = sample(engine, Sampling(60, 0.7))
    assert plain.entropy_PV is None and plain.certainty_PV is None
    assert all(torch.equal(getattr(plain, name), getattr(asked, name)) for name in FIELDS)
    again = sample(engine, Sampling(60, 0.7, stats=True)).entropy_PV
    assert again is not None and gap(asked.entropy_PV, again) < 1e-6


def test_they_follow_the_weights(engine: VllmEngine, tools: Any) -> None:
    changed = tools.make_model()
    tools.change(changed)
    engine.update_weights(changed, version=1)
    rollouts = sample(engine, Sampling(20, 0.7, stats=True))
    entropy, _ = token_stats(Scorer(changed), PROMPTS, rollouts, 0.7, 4096)
    assert gap(rollouts.entropy_PV, entropy) < 1e-5
    engine.update_weights(tools.make_model(), version=0)


def test_vllms_other_model_runner_takes_the_same_processor() -> None:
    """The runner itself needs Triton; this is its way to load, ask and call a processor."""
    from vllm.v1.worker.gpu.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
        LogitsContext,
        LogitsProcRequestState,
        build_custom_logits_processors,
    )

    log, prompts = TokenStatsLog(), SimpleNamespace(np=np.array([3, 5]))
    state = LogitsProcRequestState(
        device="cpu", max_num_reqs=2, vocab_size=7, all_token_ids=None, prompt_len=prompts,
        prefill_len=None, total_len=None,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogitsProcRequestState, "from_request_state", lambda _: state)
        (made,) = build_custom_logits_processors(None, state, False, [stats_processor(log)])
    params = [SimpleNamespace(seed=seed, temperature=0.5) for seed in (8, 9)]
    assert not made.add_request(0, params[0])  # nobody asked, so it is never called
    log.watch([8, 9])
    assert made.add_request(1, params[0]) and made.add_request(0, params[1])
    made.apply_staged_writes()
    logits = torch.randn(2, 7, generator=torch.Generator().manual_seed(0))
    context = LogitsContext(
        expanded_idx_mapping=torch.tensor([1, 0]),
        idx_mapping=torch.tensor([1, 0]),
        idx_mapping_np=np.array([1, 0]),
        expanded_local_pos=torch.zeros(2),
        input_ids=torch.zeros(2),
        pos=torch.tensor([4, 2]),
        seq_lens_upper_bound_np=np.array([5, 3, 0], dtype=np.int32),
    )
    assert made.apply(logits, context) is logits
    expected = stats_of_logits(logits, 0.5).double()
    assert torch.equal(torch.stack(log.means([1, 1])), expected)


def test_the_kernel_for_gpus_computes_the_same() -> None:
    logits = 3 * torch.randn(5, 999, generator=torch.Generator().manual_seed(0))
    logits[1, 2] = -torch.inf
    with torch.inference_mode():
        for rows, temperature in ((5, 0.7), (3, 1.0)):
            found = fused_stats(logits[:rows], temperature)
            expected = stats_of_logits(logits[:rows], temperature)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_rule_on_vllm_makes_no_pass_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own; the same run by passes of the trainer differs by rounding alone."""
    config = TrainConfig(
        engine="vllm", n_problems=4, batch_size=4, n_votes=8, n_samples=4, epochs=2,
        eval_samples=1, eval_every=0, rule="intuitor", guard=arm("intuitor").guard,
    )  # fmt: skip

    def forbidden(*_: Any) -> Any:
        raise AssertionError("a pass of the trainer")

    with monkeypatch.context() as patch:
        patch.setattr(real.vote.observe, "token_stats", forbidden)
        logged = train(config, progress=False).steps
    monkeypatch.setattr(make, "needs_stats", lambda _: False)
    passed = train(replace(config, engine="vllm_inprocess"), progress=False).steps
    for column in ("grad_norm", "update_norm"):
        assert np.max(logged[column]) > 0
        np.testing.assert_allclose(logged[column], passed[column], rtol=1e-3)
