"""Log-probs of the trained tokens: memory of chunked against whole logits, cost of the layouts.

python benchmarks/bench_logprobs.py [bundles]

With `bundles` only the last part: one gradient of 16 responses with a prompt in front of each
against bundles of responses behind one prompt, in turn, in CPU seconds. The prompts are few-shot
ones (137 tokens and 17 of response; at least 2.5 times as fast) and those of the tiny task (10 and
22; no slower, since nothing is bundled).

Memory is the peak resident set of a process of its own for each variant, less what was resident
before the logits were made (Linux: VmHWM, VmRSS).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from real.settings.config import TrainConfig
from real.update.grpo import backward
from real.update.head import CHUNK_ELEMENTS, Head, head_scores
from real.update.logprobs import Scorer
from real.update.packing import Group, Layout, Place, plan, row_counts

ROWS, TOKENS, VOCABULARY, WIDTH = 32, 512, 32768, 64


def measure_head(name: str, grads: str) -> None:
    """One variant in this process; prints what it cost."""
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    hidden = torch.randn(ROWS * TOKENS, WIDTH, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (ROWS * TOKENS,))
    factors = torch.linspace(-1, 1, len(targets))
    chunk = CHUNK_ELEMENTS if name == "chunked" else ROWS * TOKENS * VOCABULARY
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before, start = resident_mib("VmRSS"), time.process_time()
    scores = head_scores(Head(head), hidden, targets, 0.6, chunk_elements=chunk)
    (scores.logprobs_n * factors).sum().backward()
    cost = {"mib": resident_mib("VmHWM") - before, "seconds": time.process_time() - start}
    save_file({"hidden": hidden.grad, "weight": head.weight.grad}, grads)
    print(json.dumps(cost))


def bench_memory() -> None:
    print(f"{ROWS} rows x {TOKENS} tokens x {VOCABULARY} words, single precision, CPU")
    costs: dict[str, dict[str, float]] = {}
    grads: dict[str, dict[str, torch.Tensor]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("whole", "chunked"):
            path = str(Path(folder, name))
            command = [sys.executable, __file__, name, path]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            costs[name], grads[name] = json.loads(done.stdout), load_file(path)
            print(f"  {name:8s} {costs[name]['mib']:7.0f} MiB {costs[name]['seconds']:6.1f} s")
    print(f"  memory   1/{costs['whole']['mib'] / costs['chunked']['mib']:.1f}")
    for name, whole in grads["whole"].items():
        gap = (grads["chunked"][name] - whole).norm() / whole.norm()
        print(f"  gradient of {name}: relative difference {gap:.1e}")


def bench_layouts() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=1000, max_position_embeddings=4096, **sizes, **heads)
    scorer = Scorer(Qwen2ForCausalLM(config).eval())
    for title, low, high in (("equal", 256, 256), ("50 to 500", 50, 500)):
        lengths = torch.randint(low, high + 1, (16,))
        group = Group(
            prompt_L=torch.randint(0, 1000, (32,)),
            tokens_KT=torch.randint(0, 1000, (16, int(lengths.max()))),
            old_KT=torch.zeros(16, int(lengths.max())),
            lengths_K=lengths,
            majority_K=torch.ones(16),
            minority_K=torch.zeros(16),
        )
        print(f"16 rows, {title} tokens, budget 4096, sdpa on CPU")
        stacked = [[(0, k) for k in range(i, i + 8)] for i in (0, 8)]
        compare_layout(scorer, group, "as they come", "padded", stacked)
        for layout in ("padded", "packed"):
            passes = plan([group], [row_counts(group)], 4096, layout)
            compare_layout(scorer, group, layout, layout, passes)


def compare_layout(
    scorer: Scorer, group: Group, title: str, layout: Layout, passes: list[list[Place]]
) -> None:
    scorer.layout = layout
    best = min(seconds_of(scorer, group, passes) for _ in range(3))
    batches = [scorer.micro_batch([group], places) for places in passes]
    filled = sum(batch.rows.input_ids_BS.numel() for batch in batches)
    used = int((group.lengths_K + 31).sum())
    print(f"  {title:12s} {len(passes)} passes, {1 - used / filled:5.1%} padding, {best:6.2f} s")


def seconds_of(scorer: Scorer, group: Group, passes: list[list[Place]]) -> float:
    start = time.process_time()
    for places in passes:
        scorer(scorer.micro_batch([group], places).rows, 0.6).logprobs_n.sum().backward()
    return time.process_time() - start


def bench_padding() -> None:
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(100, 3001, (100, 32), generator=g) + 150
    found: list[Any] = []
    for row in lengths:
        empty = torch.zeros(32, int(row.max()))
        group = Group(torch.zeros(1), empty, empty, row, empty[:, 0], empty[:, 0])
        passes = plan([group], [row_counts(group)], 16384)
        filled = sum(len(p) * int(row[[k for _, k in p]].max()) for p in passes)
        found.append((1 - int(row.sum()) / filled, 1 - row.float().mean() / row.max(), len(passes)))
    waste, stacked, n_passes = torch.tensor(found).mean(dim=0).tolist()
    print("32 rows of 250 to 3150 tokens, budget 16384, mean of 100 draws")
    print(f"  sorted and cut {waste:.1%} padding in {n_passes:.1f} passes; stacked {stacked:.1%}")


def bench_bundles(rounds: int = 9) -> None:
    print("16 responses to one prompt, seconds of one gradient, median of the rounds")
    for width, layers in ((64, 2), (256, 4), (576, 6)):
        torch.manual_seed(0)
        sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=1000, **sizes, **heads)).eval()
        for n_prompt, n_response in ((137, 17), (10, 22)):
            group = Group(
                prompt_L=torch.randint(0, 1000, (n_prompt,)),
                tokens_KT=torch.randint(0, 1000, (16, n_response)),
                old_KT=torch.full((16, n_response), -7.0),
                lengths_K=torch.full((16,), n_response),
                majority_K=torch.linspace(-1, 1, 16),
                minority_K=torch.zeros(16),
            )
            compare_bundles(model, group, f"width {width}, {n_prompt} + {n_response}", rounds)


def compare_bundles(model: Any, group: Group, title: str, rounds: int) -> None:
    ways = {"alone": Scorer(model), "chosen": Scorer(model)}
    ways["alone"].bundle_width = None
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, scorer in ways.items():
            start = time.process_time()
            backward(scorer, [group], TrainConfig(temperature=1.0))
            spent[name].append(time.process_time() - start)
    alone, chosen = (statistics.median(seconds[1:]) for seconds in spent.values())
    bundle = ways["chosen"].plan([group], [row_counts(group)], 16384).bundle
    print(
        f"  {title:20s} alone {alone:.4f}, chosen {chosen:.4f} ({bundle} responses a prompt): "
        f"{alone / chosen:.2f} times as fast"
    )


def resident_mib(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return float(status.split(f"{field}:")[1].split()[0]) / 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["bundles"]:
        bench_bundles()
    elif len(sys.argv) > 1:
        measure_head(*sys.argv[1:])
    else:
        bench_padding()
        bench_layouts()
        bench_memory()
        bench_bundles()
