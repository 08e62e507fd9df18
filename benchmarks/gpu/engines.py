"""Sections on vLLM: its answers, its memory, the weights' way to it, its deaths."""

from __future__ import annotations

import functools
import json
import os
import signal
import statistics
import sys
import threading
import time
import warnings
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from record import Report
from safetensors.torch import save_file
from shapes import Setup, end_tokens, make_model, model_config, model_folder

from real.engines.child_engine import ChildEngine
from real.engines.make import RestartingEngine
from real.engines.rollouts import Engine, EngineError, Prompts, Rollouts, Sampling
from real.engines.vllm_engine import VllmEngine, VllmSettings
from real.engines.weights import Room, Route
from real.model.prepare import adapter_config, adapter_weights, add_lora
from real.plan import PlannedModel
from real.settings.groups import MemorySettings, UpdateSettings
from real.update.logprobs import Scorer, group_scores
from real.update.packing import unpaid

EAGER = """
import functools, runpy, vllm
vllm.LLM = functools.partial(vllm.LLM, enforce_eager=True)
runpy.run_module("real.engines.child", run_name="__main__")
"""
"""Program of an engine's process that starts faster: without compiling and CUDA graphs."""
TEMPERATURE = 0.7
SCORED = UpdateSettings(temperature=TEMPERATURE, max_tokens_per_microbatch=2**14)
"""Tokens of a pass of the trainer."""
PROMPTS: Prompts = [[40, 41, 42], [(7 * i) % 400 + 40 for i in range(60)], [45] * 9]


def vllm(setup: Setup, report: Report) -> None:
    """Compare vLLM in this process with the trainer's log-probs, also after cycles of sleep."""
    model = make_model(setup, "0.5B", torch.float32)
    sampling = _sampling(setup)
    with closing(_inprocess(setup)) as engine:
        report.add("message: no weights yet", _refusal(engine, sampling))
        for version, released in ((0, False), (1, True), (2, False)):
            if version:
                _change(model)
            if released:
                engine.release()
            engine.update_weights(model, version)
            drawn = engine.sample(PROMPTS, 8, sampling, _draws())
            report.check(f"version {version}: log-probs", _gap(setup, model, drawn), 1e-3)
            report.check(f"version {version}: version", abs(drawn.version - version), 0)
        again = engine.sample(PROMPTS, 8, sampling, _draws())
        report.add("equal seeds: share of equal tokens", _equal(drawn, again))
        other = engine.sample(PROMPTS, 8, sampling, _draws(1))
        report.check("other seeds: share of equal tokens", _equal(drawn, other), 0.5)
        engine.release()
        report.add("message: asleep", _refusal(engine, sampling))
        _cycles(setup, report, engine, model)


def _cycles(setup: Setup, report: Report, engine: VllmEngine, model: Any) -> None:
    """Report the memory that cycles of sleep lose, and the log-probs after them."""
    engine.update_weights(model, 0)
    free: dict[str, list[float]] = {"awake": [_free(setup)], "asleep": []}
    for version in range(1, setup.pick(21, 3)):
        engine.release()
        free["asleep"].append(_free(setup))
        engine.update_weights(model, version)
        free["awake"].append(_free(setup))
    for name, values in free.items():
        lost = (values[1] - values[-1]) / (len(values) - 1) / 1e6
        report.target(f"memory lost a cycle, {name}", lost, "MB", at_most=2)
    drawn = engine.sample(PROMPTS, 8, _sampling(setup), _draws())
    report.check("log-probs after the cycles", _gap(setup, model, drawn), 1e-3)


def decode(setup: Setup, report: Report) -> None:
    """Seconds of a decoded token by rows, with CUDA graphs, and the rates that follow from them.

    The time of `n` rows is `overhead + bytes / bandwidth + operations / flops`, by least squares.
    """
    rows: list[tuple[float, float, float]] = []
    slower: list[float] = []
    for shape in ("3B", "7B"):
        setup.free()
        model = make_model(setup, shape, setup.pick(torch.bfloat16, torch.float32))
        size = PlannedModel(model_config(setup, shape)).size()
        settings = _settings(setup, shape, setup.pick("bfloat16", "float32"), 0.5)
        with closing(VllmEngine(replace(settings, eos_token_ids=(), adapter_rank=16))) as engine:
            engine.update_weights(model, 0)
            plain = _decoded(setup, report, engine, f"{shape}")
            add_lora(model, MemorySettings(lora_rank=16))
            folder = setup.folder / f"adapters-{shape}"
            folder.mkdir()
            (folder / "adapter_config.json").write_text(json.dumps(adapter_config(model)))
            weights = {name: weight.cpu() for name, weight in adapter_weights(model)}
            save_file(weights, folder / "adapter_model.safetensors")
            engine.host.adapt(folder, 1)
            adapted = _decoded(setup, report, engine, f"{shape}, adapters")
        for n, seconds in plain.items():
            cached = n * _DECODED[1] * 2 * size.n_kv
            rows.append((2 * size.n_weights + cached, 2 * n * size.n_multiplied, seconds))
        slower += [adapted[n] / plain[n] for n in plain if n > 1]
    bytes_N, flops_N, seconds_N = (np.array(column) for column in zip(*rows, strict=True))
    terms_N3 = np.stack([np.ones(len(rows)), bytes_N, flops_N], 1) / seconds_N[:, None]
    overhead, per_byte, per_flop = np.linalg.lstsq(terms_N3, np.ones(len(rows)))[0]
    report.rate("decode_overhead", float(overhead), "s")
    report.rate("bandwidth", float(1 / per_byte), "B/s")
    report.rate("sample_flops", float(1 / per_flop), "1/s")
    report.rate("adapters", statistics.median(slower), "")


_DECODED = (16, 80)
"""Tokens of two samples, whose difference leaves the prompts out."""


def _decoded(setup: Setup, report: Report, engine: Engine, name: str) -> dict[int, float]:
    """Report and return the seconds of a decoded token by the number of rows."""
    found: dict[int, float] = {}
    for n in setup.pick((1, 64, 256, 512), (1, 4, 8, 16)):

        def sampled(n_tokens: int, n: int = n) -> float:
            sampling = Sampling(setup.pick(n_tokens, n_tokens // 8), TEMPERATURE)
            return setup.seconds(lambda: engine.sample([[40]], n, sampling, _draws()))

        few, many = (sampled(n_tokens) for n_tokens in _DECODED)
        found[n] = max(many - few, 1e-9) / (_DECODED[1] - _DECODED[0])
        report.add(f"{name}: a token of {n} rows", 1000 * found[n], "ms")
    return found


def sync(setup: Setup, report: Report) -> None:
    """Seconds in which new weights of the 7B shape reach vLLM, awake and ready to sample."""
    model = make_model(setup, "7B", setup.pick(torch.bfloat16, torch.float32))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    report.add("weights", size / 1e9, "GB")
    with closing(_child(setup, "7B", 0.4)) as engine:
        with warnings.catch_warnings(record=True) as said:
            seconds = _synced(setup, report, engine, model)
        refused = setup.dry or any("CUDA IPC" in str(one.message) for one in said)
        report.add("through", "memory of the host" if refused else "CUDA IPC")
    report.rate("hand_over", size / seconds, "B/s")
    report.target("seconds for 7B", seconds, "s", at_most=1.0)


def failures(setup: Setup, report: Report) -> None:
    """Engines that are killed are replaced, and give the same responses."""
    model = make_model(setup, "0.5B", torch.float32)
    notices: list[str] = []
    sampling = _sampling(setup)
    engine = RestartingEngine(lambda: _child(setup, "0.5B", 0.2, "float32"), 2)
    engine.notice = notices.append
    with closing(engine):
        engine.update_weights(model, 0)
        expected = engine.sample(PROMPTS, 8, sampling, _draws())
        if not setup.dry:  # starts take long
            engine.release()
            _kill(engine)
            seconds = setup.seconds(lambda: engine.update_weights(model, 0), warm=0)
            report.add("killed asleep: seconds to new weights", seconds, "s")
        _kill(engine, signal.SIGSTOP)
        threading.Timer(1.0, _kill, (engine,)).start()
        engine.update_weights(model, 0)
        again = engine.sample(PROMPTS, 8, sampling, _draws())
        report.add("after the last death: share of equal tokens", _equal(expected, again))
    report.check("notices that are missing", setup.pick(2, 1) - len(notices), 0)
    for number, notice in enumerate(notices):
        report.add(f"notice {number + 1}", notice)


def _settings(setup: Setup, shape: str, dtype: str, memory: float) -> VllmSettings:
    return VllmSettings(
        model=str(model_folder(setup, shape, weights=False)),
        max_model_len=setup.pick(4096, 128),
        eos_token_ids=end_tokens(setup, model_config(setup, shape).vocab_size),
        dtype=dtype,
        head_dtype="float32",
        max_rows=setup.pick(512, 16),
        memory=memory,
        device=setup.device.type,
        threads=setup.pick(None, 1),
    )


def _inprocess(setup: Setup) -> VllmEngine:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm as package

    package.LLM = functools.partial(package.LLM, enforce_eager=True)
    return VllmEngine(_settings(setup, "0.5B", "float32", 0.3))


def _child(setup: Setup, shape: str, memory: float, dtype: str | None = None) -> ChildEngine:
    dtype = dtype or setup.pick("bfloat16", "float32")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    command = (sys.executable, "-c", EAGER, "real.engines.vllm_engine:vllm_host")
    kind = getattr(torch, dtype)
    weights = make_model(setup, shape, kind, "meta")
    return ChildEngine(
        asdict(_settings(setup, shape, dtype, memory)),
        300.0,
        Route(setup.device, kind),
        Room.of(weights, kind),
        command=command,
        log=setup.folder / "engine.log",
    )


def _synced(setup: Setup, report: Report, engine: Any, model: Any) -> float:
    """Report the median seconds of the stages; returns that of the whole."""
    found: dict[str, list[float]] = {}
    for version in range(setup.pick(4, 2)):
        engine.release()
        setup.wait()
        began = time.perf_counter()
        stages = engine.update_weights(model, version)
        setup.wait()
        for column, seconds in ({"whole": time.perf_counter() - began} | stages).items():
            found.setdefault(column, []).append(seconds)
    for column, values in found.items():
        report.add(column, statistics.median(values[1:]), "s")
    return statistics.median(found["whole"][1:])


def _sampling(setup: Setup) -> Sampling:
    return Sampling(setup.pick(64, 12), TEMPERATURE)


def _draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _free(setup: Setup) -> float:
    return 0.0 if setup.dry else float(torch.cuda.mem_get_info()[0])


def _refusal(engine: Engine, sampling: Sampling) -> str:
    """Return the message of an engine that must not sample now."""
    try:
        engine.sample(PROMPTS, 1, sampling, _draws())
    except EngineError as error:
        return str(error)
    raise RuntimeError("the engine sampled without weights")


@torch.no_grad()
def _change(model: Any) -> None:
    draws = torch.Generator(model.device).manual_seed(0)
    for parameter in model.parameters():
        noise = torch.empty_like(parameter).normal_(generator=draws)
        parameter += 0.2 * parameter.std().nan_to_num() * noise


def _gap(setup: Setup, model: Any, drawn: Rollouts) -> float:
    """Largest difference of log-probs from those of the trainer."""
    drawn = drawn.to(setup.device)
    rows = zip(PROMPTS, drawn.tokens_PNT, drawn.logprobs_PNT, drawn.lengths_PN, strict=True)
    groups = [unpaid(*row) for row in rows]
    ours = group_scores(Scorer(model), groups, SCORED)
    pairs = zip(ours, groups, strict=True)
    return max(float((a - g.old_KT)[g.counted_KT].abs().max()) for (a,), g in pairs)


def _equal(one: Rollouts, other: Rollouts) -> float:
    width = min(one.tokens_PNT.shape[-1], other.tokens_PNT.shape[-1])
    same = one.tokens_PNT[..., :width] == other.tokens_PNT[..., :width]
    return float(same[one.mask_PNT()[..., :width]].float().mean())


def _kill(engine: RestartingEngine, number: int = signal.SIGKILL) -> None:
    inside = engine.engine
    assert isinstance(inside, ChildEngine)
    os.kill(inside.pid, number)
