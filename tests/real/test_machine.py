import errno
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from small_models import decoder_sizes
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.import_utils import is_flash_attn_2_available

from lab.base.errors import UserError
from real import TrainConfig, train
from real.model import machine as memory
from real.model.machine import in_phase, phase_of
from real.model.policy import load_policy
from real.plan import multiplied
from real.record.metrics import Clock
from real.settings.presets import preset
from real.settings.resolve import settled_for
from real.speed import CARDS, card_named, update_flops
from real.tiny import CHECKPOINT

OWN = TrainConfig(model="folder", problems="p.json")


def chosen(config, **machine):
    settled, notices = settled_for(config, **machine)
    assert settled == settled.settled()
    return settled.dtype, settled.engine, notices


def test_a_gpu_gets_bfloat16_and_vllm_and_says_so():
    dtype, engine, notices = chosen(OWN, device="cuda", vllm=True)
    assert (dtype, engine) == ("bfloat16", "vllm")
    assert notices == ["chosen for this GPU: dtype bfloat16, engine vllm"]
    dtype, engine, notices = chosen(OWN, device="cuda", vllm=False)
    assert (dtype, engine) == ("bfloat16", "transformers")
    assert "not installed" in notices[0]


def test_what_is_asked_for_is_kept():
    asked = TrainConfig(model="m", problems="p.json", dtype="float32", engine="transformers")
    assert chosen(asked, device="cuda", vllm=True) == ("float32", "transformers", [])
    cell = preset("qwen2.5-7b/math500", "folder", engine="transformers")
    assert chosen(cell, device="cuda", vllm=True) == ("bfloat16", "transformers", [])


def test_flash_attention_is_refused_in_single_precision():
    """Its kernels are first called when the engine has started, and say so in a traceback."""
    flash = {"attention": "flash_attention_2"}
    tiny, wide = TrainConfig(**flash), replace(OWN, dtype="float32", **flash)
    for config in (tiny, wide):
        with pytest.raises(UserError, match=r"flash_attention_2': .*dtype is float32"):
            settled_for(config, "cuda", vllm=True)
    assert chosen(replace(OWN, **flash), device="cuda", vllm=True)[0] == "bfloat16"
    assert chosen(wide, device="cpu")[0] == "float32"  # where loading refuses the kernel


@pytest.fixture
def settings(monkeypatch):
    """Settings that torch's allocator gets."""
    made = []
    name = "_accelerator_setAllocatorSettings"
    monkeypatch.setattr(torch._C, name, made.append, raising=False)
    monkeypatch.setattr(memory, "SEGMENTS", memory.Segments())
    for name in memory.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return made


def test_segments_grow_but_for_memory_that_others_open(settings):
    memory.grow_segments(torch.device("cuda"), vllm_inside=False)
    with memory.fixed_segments():
        assert settings[-1] == "expandable_segments:False"
    assert settings == [f"expandable_segments:{grow}" for grow in (True, False, True)]


def test_segments_stay_fixed_elsewhere(settings, monkeypatch):
    memory.grow_segments(torch.device("cpu"), vllm_inside=False)
    memory.grow_segments(torch.device("cuda"), vllm_inside=True)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:512")
    memory.grow_segments(torch.device("cuda"), vllm_inside=False)
    with memory.fixed_segments():
        pass
    assert settings == []


def test_steps_on_a_gpu_tell_its_memory_and_the_use_of_its_speed(monkeypatch):
    reset = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 * 10**9)

    def measured(kind):
        clock = Clock(torch.device(kind))
        for phase in ("rollout", "update"):
            with clock.phase(phase):
                pass
        return clock.columns(100.0, 1.0, 1e15, peak=989e12, world=4)

    on_gpu, on_cpu = measured("cuda"), measured("cpu")
    assert on_gpu["gpu_memory_gb"] == 3.0 and reset == [torch.device("cuda")]
    assert on_gpu["tokens_per_gpu_second"] == pytest.approx(25 / on_gpu["seconds_step"])
    speed = 1e15 / on_gpu["seconds_update"]
    assert on_gpu["share_of_peak"] == pytest.approx(speed / (4 * 989e12))
    assert not {"gpu_memory_gb", "tokens_per_gpu_second", "share_of_peak"} & set(on_cpu)


def test_a_card_is_known_by_its_name():
    known = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4": "a100"}
    assert all(card_named(name) == CARDS[kind] for name, kind in known.items())
    for other in ("NVIDIA H100 PCIe", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GH200 480GB"):
        assert card_named(other) is None


def test_operations_of_an_update_are_those_that_torch_counts():
    """Embeddings of their own are looked up, a tied head is multiplied; attention is left out."""
    for tied in (True, False):
        sizes = decoder_sizes(512, hidden_size=64, intermediate_size=128, initializer_range=0.02)
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied))
        with FlopCounterMode(display=False) as counter:
            model(torch.arange(8)[None], use_cache=False).logits.sum().backward()
        counts = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
        products = sum(n for op, n in counts.items() if "mm" in op and "bmm" not in op)
        expected = 8 * update_flops(multiplied(model), TrainConfig())
        assert products == pytest.approx(expected, rel=0.02)


NCCL = """NCCL error in: /pytorch/NCCLUtils.cpp:93, unhandled cuda error, NCCL version 2.28.9
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. More"), "GPU memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), "GPU"),
        (RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"), "GPU memory"),
        (torch.distributed.DistBackendError(NCCL), r"GPU memory \(Cuda failure 2 'out of memory'"),
        (RuntimeError("std::bad_alloc"), "main memory"),
        (MemoryError(), "main memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "main memory"),
    ],
    ids=["torch", "cublas", "driver", "nccl", "c++", "python", "system"],
)
def test_every_spelling_names_phase_and_settings(error, words):
    remedies = "lower max_tokens_per_microbatch", "lower engine_memory", "lora_rank"
    for phase, remedy in zip(("update", "sync", "other"), remedies, strict=True):
        told = pytest.raises(UserError, match=f"{phase}: out of {words}.*{remedy}")
        with told, in_phase("run"), in_phase(phase):
            raise error


def test_a_bug_carries_its_innermost_phase():
    told = pytest.raises(ValueError, match="no such row")
    with told as raised, in_phase("run"), in_phase("evaluation"), in_phase("rollout"):
        raise ValueError("no such row")
    assert phase_of(raised.value) == "rollout"


@pytest.mark.parametrize(
    ("function", "phase"),
    [
        ("real.vote.extra_rollouts.ExtraRollouts.after_step", "sync"),
        ("real.record.evaluation.evaluate", "evaluation"),
        ("real.record.checkpoint.Checkpoints.save", "checkpoint"),
        ("real.trainer.prepare", "start"),
        ("real.vote.decide.Supervisor.decide", "guard"),
    ],
)
def test_no_phase_lacks_a_limit(function, phase, tmp_path, monkeypatch):
    monkeypatch.setattr(function, lambda *_, **__: torch.empty(2**58))
    small = TrainConfig(n_problems=2, n_votes=4, n_samples=4, batch_size=2, epochs=1, eval_every=0)
    words = rf"^{phase}: out of main memory .*; .*(lora_rank|max_rows)"
    with pytest.raises(UserError, match=words):
        train(small, tmp_path / "run", progress=False)


@pytest.mark.skipif(is_flash_attn_2_available(), reason="it is installed")
def test_missing_attention_kernel_is_named():
    with pytest.raises(UserError, match=r"could not be loaded .FlashAttention2 .* cannot be used"):
        load_policy(CHECKPOINT, attention="flash_attention_2")
    eager = load_policy(CHECKPOINT, attention="eager").model
    assert eager.config._attn_implementation == "eager"


FAULTS = """
import resource, torch
from real.model.machine import keep_freed_memory
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def allocate():
    before = faults()
    for _ in range(8):
        torch.ones(2**24)
    return faults() - before
without = allocate()
keep_freed_memory(torch.device("cpu"))
allocate()  # the first blocks may lie apart
print(without, allocate())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_freed_memory_is_kept():
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())
    assert kept < without / 4
