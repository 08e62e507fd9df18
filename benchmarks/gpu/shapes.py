"""Models of known shapes with random weights, and scripted responses: nothing is downloaded."""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from record import Report
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from real import plan
from real.model.policy import widen_head
from real.model.prepare import prepare_training
from real.plan import CONTEXT, GIB, RESERVE, PlannedModel, plan_memory
from real.ranks.distributed import shard
from real.settings import presets
from real.settings.config import TrainConfig
from real.speed import product_flops
from real.tiny import CHECKPOINT
from real.tiny.tasks import VOCABULARY_SIZE
from real.update.logprobs import Scorer
from real.update.optimizer import PolicyOptimizer
from real.update.packing import Group

T = TypeVar("T")

SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": plan.SHAPES["Qwen2.5-7B-Instruct"]
    | {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "3B": plan.SHAPES["Llama-3.2-3B-Instruct"],
    "7B": plan.SHAPES["Qwen2.5-7B-Instruct"],
}
_DRY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
}
"""In place of every size, in a dry run."""
_DRY_RUN = {
    "n_votes": 8,
    "n_samples": 4,
    "batch_size": 2,
    "max_prompt_tokens": 24,
    "max_response_tokens": 40,
    "max_tokens_per_microbatch": 128,
    "max_rows": 16,
}
MEAN_TOKENS = 700
N_PROBLEMS = 500
_HEAD_SCALE = 0.05
"""On the output head's random weights: tokens are then drawn almost uniformly, and the share of
end tokens in the vocabulary is the chance that a response ends."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a section runs on."""

    dry: bool
    """Tiny models on the CPU."""
    folder: Path
    """For files, also models, which later sections find there."""

    @property
    def device(self) -> torch.device:
        """The GPU; the CPU in a dry run."""
        return torch.device("cpu" if self.dry else "cuda")

    def pick(self, real: T, dry: T) -> T:
        """Return one of two values."""
        return dry if self.dry else real

    def seconds(self, work: Callable[[], object], repeats: int = 1, warm: int = 1) -> float:
        """Return the median seconds of a work; a dry run does it once."""
        times: list[float] = []
        for _ in range(self.pick(warm + repeats, 1)):
            began = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times[-repeats:])

    def wait(self) -> None:
        """Wait for the GPU."""
        if not self.dry:
            torch.cuda.synchronize()

    def peak(self) -> float:
        """Return the most bytes of tensors on the GPU since the last call; 0 without one."""
        if self.dry:
            return 0.0
        most = float(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        return most

    def process(self, work: Callable[..., object], *arguments: Any) -> Any:
        """Start a process that does a work; on a GPU a fresh one."""
        kind: Any = multiprocessing.get_context("fork" if self.dry else "spawn")
        process = kind.Process(target=work, args=arguments)
        process.start()
        return process

    def free(self) -> None:
        """Free unused memory."""
        gc.collect()
        if not self.dry:
            torch.cuda.empty_cache()

    def ceiling(self) -> float:
        """Return the operations per second of a product of large bfloat16 matrices."""
        return product_flops(self.device, *self.pick((8192,) * 3, (64,) * 3))


def model_config(setup: Setup, shape: str) -> Any:
    """Return a model's config of transformers."""
    return AutoConfig.for_model(**SHAPES[shape] | (_DRY if setup.dry else {}))


def end_tokens(setup: Setup, vocabulary: int) -> tuple[int, ...]:
    """Return so many tokens as ends that responses of `MEAN_TOKENS` are expected."""
    n_ends = round(vocabulary / setup.pick(MEAN_TOKENS, 16))
    return tuple(range(VOCABULARY_SIZE, VOCABULARY_SIZE + n_ends))


def make_model(
    setup: Setup, shape: str, dtype: torch.dtype = torch.bfloat16, device: str = ""
) -> Any:
    """Make a model with random weights on the section's device, or on another one."""
    torch.manual_seed(0)
    with torch.device(device) if device else setup.device:
        model = AutoModelForCausalLM.from_config(model_config(setup, shape), dtype=dtype)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(_HEAD_SCALE)
    widen_head(model)
    return model.eval()


def model_folder(setup: Setup, shape: str, weights: bool = True) -> Path:
    """Return a folder as a model's own, with the tiny task's tokenizer.

    Responses end after `MEAN_TOKENS` on average: so many of the tokens are end tokens. Engines,
    which start with dummy weights, need no `weights`.
    """
    folder = setup.folder / f"{shape}-{'whole' if weights else 'config'}"
    if (folder / "tokenizer.json").exists():
        return folder
    config = model_config(setup, shape)
    ends = [*end_tokens(setup, config.vocab_size)]
    if weights:
        make_model(setup, shape).save_pretrained(folder)
        setup.free()  # the plan of a run takes what torch keeps for that of another process
    else:
        config.architectures = [type(make_model(setup, shape, device="meta")).__name__]
        config.save_pretrained(folder)
    GenerationConfig(eos_token_id=ends, pad_token_id=0).save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(CHECKPOINT)).save_pretrained(folder)
    return folder


def train_config(setup: Setup, **changes: Any) -> TrainConfig:
    """Return the paper's settings with scripted problems; nothing is evaluated or saved."""
    problems = setup.folder / "problems.json"
    if not problems.exists():
        sum_of = "+".join(str(i % 10) for i in range(setup.pick(75, 8))) + "="
        rows = [{"id": str(i), "prompt": f"{i}+{sum_of}", "answer": "3"} for i in range(N_PROBLEMS)]
        problems.write_text(json.dumps(rows))
    values = {
        "model": "none",
        "problems": str(problems),
        "chat_template": "off",
        "prompt_suffix": "",
        "answer_check": "strings",
        "engine": "transformers",
        "device": setup.device.type,
        "save_model": False,
        **changes,
        **(_DRY_RUN if setup.dry else {}),
    }
    return presets.preset("llama-3.2-3b/math500", **values).settled()


def update_bytes(setup: Setup, shape: str, config: TrainConfig) -> int:
    """Return the planned bytes of an update on one GPU, without those of libraries and engines."""
    size = PlannedModel(model_config(setup, shape)).size(config)
    parts = plan_memory(size, config, 1, 2**40).parts
    return sum(p.update for p in parts if not p.name.startswith(("libraries", "engine")))


def fits(n_bytes: int, card: int) -> bool:
    """Return whether planned bytes of tensors fit a GPU beside libraries and the reserve."""
    return n_bytes + CONTEXT <= card * (1 - RESERVE)


def attempt(
    setup: Setup, report: Report, name: str, n_bytes: int, work: Callable[[], T]
) -> T | None:
    """Return the result of a work; None if its planned bytes do not fit or memory ran out."""
    card = 2**60 if setup.dry else torch.cuda.mem_get_info()[1]
    if not fits(n_bytes, card):
        words = f"needs {(n_bytes + CONTEXT) / GIB:.0f} of {card / GIB:.0f} GiB"
        report.add(f"{name}: left out", words)
        return None
    try:
        return work()
    except torch.OutOfMemoryError as error:
        report.add(f"{name}: out of memory", str(error).splitlines()[0][:200])
        return None
    finally:
        setup.free()


def join_alone(setup: Setup) -> None:
    """Make this process the only rank of a group, with the trainer's backends."""
    backend = "gloo" if setup.dry else "cpu:gloo,cuda:nccl"
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)  # at a free port
    limit = timedelta(seconds=600)
    dist.init_process_group(backend, timeout=limit, store=store, rank=0, world_size=1)


def scripted_update(
    setup: Setup,
    shape: str,
    config: TrainConfig,
    lengths_K: Tensor,
    prompt_tokens: int = 150,
    ranks: int = 0,
) -> tuple[PolicyOptimizer, list[Group]]:
    """Return the trainer's optimizer of a model of that shape, and a group of random tokens.

    The model is sharded if `ranks` are given. The responses, of `lengths_K` tokens, have both
    advantage streams, and are as sampled by a uniform policy.
    """
    setup.free()
    model = make_model(setup, shape, getattr(torch, config.dtype))
    prepare_training(model, config)
    scorer = Scorer(model)
    if ranks:
        shard(scorer, init_device_mesh(setup.device.type, (ranks,)))
    vocabulary, draws = model.config.vocab_size, torch.Generator().manual_seed(1)
    sizes = len(lengths_K), int(lengths_K.max())
    advantages_K = torch.linspace(-1, 1, sizes[0], device=setup.device)

    def tokens(*shape: int) -> Tensor:
        return torch.randint(VOCABULARY_SIZE, vocabulary, shape, generator=draws).to(setup.device)

    group = Group(
        prompt_L=tokens(prompt_tokens),
        tokens_KT=tokens(*sizes),
        old_KT=torch.full(sizes, -math.log(vocabulary), device=setup.device),
        lengths_K=lengths_K.to(setup.device),
        majority_K=0.8 * advantages_K,
        minority_K=0.2 * advantages_K.flip(0),
    )
    return PolicyOptimizer(scorer, config, 1000), [group]
