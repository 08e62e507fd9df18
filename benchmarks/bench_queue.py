"""CPU seconds of an evaluation through vLLM's own queue, beside closed parts of it.

python benchmarks/bench_queue.py [--rounds N]

A target, on a CPU with `make vllm`: 2,000 short responses (500 prompts, 4 each) take at most 0.7 of
the time that they take 512 at a time, where each part waits for its longest response. Lengths are
geometric with mean 16 and end at 200 at the latest. Seconds are compared token by token: both ways
draw other random numbers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from real.engines.rollouts import Sampling
from real.engines.vllm_host import VllmEngine
from real.engines.vllm_settings import VllmSettings

PROMPTS, EACH, AT_ONCE, LONGEST, LIMIT = 500, 4, 512, 200, 0.7


def model() -> Qwen2ForCausalLM:
    """Two of 32 tokens are ends, and all are about as likely: random weights of a small width."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return Qwen2ForCausalLM(
        Qwen2Config(vocab_size=32, max_position_embeddings=256, **sizes, **heads)
    ).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    torch.set_num_threads(1)
    trained, sampling = model(), Sampling(LONGEST, 1.0, logprobs=False)
    prompts = [[1 + (i + j) % 29 for j in range(12)] for i in range(PROMPTS)]
    with tempfile.TemporaryDirectory() as folder:
        trained.save_pretrained(Path(folder))
        settings = VllmSettings(
            model=folder, max_model_len=256, eos_token_ids=(30, 31), max_rows=AT_ONCE, threads=1
        )
        with closing(VllmEngine(settings)) as engine:
            engine.update_weights(trained, version=0)

            def timed(part: int) -> tuple[float, int]:
                draws = torch.Generator().manual_seed(0)
                start, n_tokens = time.process_time(), 0
                for first in range(0, PROMPTS, part):
                    drawn = engine.sample(prompts[first : first + part], EACH, sampling, draws)
                    n_tokens += int(drawn.lengths_PN.sum())
                return time.process_time() - start, n_tokens

            timed(PROMPTS)
            ratios = []
            for _ in range(options.rounds):
                (whole, n_whole), (parts, n_parts) = timed(PROMPTS), timed(AT_ONCE // EACH)
                ratios.append(whole / n_whole / (parts / n_parts))
                print(f"one queue: {n_whole} tokens, {whole:.2f} s", end="; ")
                print(f"parts: {n_parts} tokens, {parts:.2f} s", flush=True)
    print(f"one queue takes {statistics.median(ratios):.2f} of the time of parts (limit {LIMIT})")


if __name__ == "__main__":
    main()
