"""Training on a GPU, as far as it can be seen without one: on which device every tensor is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

HERE = Path(__file__).parent
SHORT = {"n_problems": 2, "batch_size": 1, "n_votes": 8, "n_samples": 4, "epochs": 1, "lr": 1e-3}
"""Settings of runs of two batches."""
RUNS = (
    {"rule": "evol_rl", "kl_coef": 0.05, "ema_decay": 0.9, "mini_batch": 2, "loss": "grpo"},
    {"rule": "scope", "gradient_checkpointing": True, "attention": "eager", "eval_every": 0,
     "offload_optimizer": True, "max_tokens_per_microbatch": 64},
    {"dtype": "bfloat16", "lora_rank": 4, "max_rows": 5, "top_p": 0.9, "old_logprobs": "trainer"},
)  # fmt: skip
COLUMNS = ["update_norm", "grad_norm", "entropy", "mismatch_kl", "tokens", "label_correct"]


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("g++") or torch.version.cuda is not None, reason="needs g++ and torch for CPUs"
)
def test_runs_mix_no_devices_and_are_those_of_the_cpu(tmp_path):
    library, root = tmp_path / "gpu.so", Path(torch.__file__).parent
    how = ["-shared", "-fPIC", "-O0", "-std=c++20", f"-I{root / 'include'}", f"-L{root / 'lib'}"]
    source = str(HERE / "pretended_gpu.cpp")
    subprocess.run(["g++", *how, source, "-o", library, "-lc10", "-ltorch_cpu"], check=True)
    calls, out = tmp_path / "calls.json", tmp_path / "out.json"
    calls.write_text(json.dumps([{**SHORT, **given} for given in RUNS]))
    subprocess.run([sys.executable, HERE / "pretended_gpu.py", library, calls, out], check=True)
    found = json.loads(out.read_text())
    assert [said.split(" in ")[0][:22] for said in found["faults"]] == [
        *2 * ["tensors on two devices"], *2 * ["can't convert cuda:0 d"]
    ]  # fmt: skip
    for given, (cpu, gpu) in zip(RUNS, found["runs"], strict=True):
        assert gpu["gpu_memory_gb"] and "gpu_memory_gb" not in cpu
        tables = [pd.DataFrame(steps)[COLUMNS] for steps in (cpu, gpu)]
        assert np.isfinite(tables[1]).all(axis=None)
        if "dtype" not in given:  # bfloat16 is rounded otherwise, and draws other tokens
            pd.testing.assert_frame_equal(*tables, rtol=2e-3, atol=1e-5)
