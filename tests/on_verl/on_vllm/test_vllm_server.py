"""verl's own vLLM server under the plugin, on vLLM's CPU build: `make test-verl-vllm`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from run_verl import HERE, ROOT
from whole_runs import run

from real.engines.vllm_engine import DEFAULTS

ON_VLLM = Path(__file__).parent
_ROLLOUT = "actor_rollout_ref.rollout"
SETTINGS = (
    f"{_ROLLOUT}.name=vllm",
    f"{_ROLLOUT}.dtype=float32",
    f"{_ROLLOUT}.enforce_eager=True",
    f"{_ROLLOUT}.free_cache_engine=False",
    f"+{_ROLLOUT}.enable_sleep_mode=False",
    f"{_ROLLOUT}.enable_chunked_prefill=False",
    f"{_ROLLOUT}.max_model_len=64",
    f"{_ROLLOUT}.max_num_batched_tokens=256",
    "trainer.n_gpus_per_node=1",
    "trainer.total_training_steps=4",
)


@pytest.mark.slow
def test_vllm_samples_from_the_weights_of_every_update(tmp_path: Path):
    path = f"{ROOT}:{HERE}:{ON_VLLM}"
    done = run(tmp_path / "vllm", *SETTINGS, PYTHONPATH=path, **DEFAULTS)
    assert done.code == 0, done.output[-5000:]
    found = re.findall(r"training/rollout_probs_diff_max:([\d.e+-]+)", done.output)
    assert len(found) == 4 and max(map(float, found)) < 1e-5
    assert (done.trace.steps["update_norm"] > 0).all()
