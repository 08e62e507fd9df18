"""Trials of a model before it is trained: a few tokens sampled and scored, and the last save."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lab.base.errors import Unfit, first_line
from lab.base.files import writing
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import Policy, load_policy, loading, max_positions, write_model
from real.model.prepare import merged_weights
from real.ranks.distributed import computed_with, whole_tensor
from real.record.checkpoint import model_bytes, save_model
from real.settings.config import TrainConfig
from real.update.logprobs import Scorer, group_scores
from real.update.packing import unpaid

_WHOLE = 2**26  # bytes of weights up to which a model is written whole in the trial
_LENGTHS = (1, 4, 9)  # tokens of the trial's prompts
_TOKENS, _EACH = 12, 2  # sampled tokens of a response, and responses to a prompt
_ROUNDING = 32
"""By how many of its precision's epsilons rounding may move a response's mean log-prob, in nats.

Measured on 82 random models of 18 architectures, 16 to 256 wide with 2 to 30 layers, as the worst
response of 16: 3e-5 in float32; 0.09 in bfloat16, and 0.2 where rounding sends tokens to other
experts. Faults of caches and positions were 0.06 to 2.8, so bfloat16 would hide some.
"""
_SWITCH = re.compile("position|window|chunk|block_size|context|topk|seq_len")
"""Part of the names in configs of lengths from which on a model reads positions in another way."""
_FAILURES = (
    *(TypeError, ValueError, RuntimeError, LookupError, AttributeError, NotImplementedError),
    *(AssertionError, ArithmeticError, ImportError),
)


def check_sampling(policy: Policy, prompts: Sequence[list[int]], config: TrainConfig) -> None:
    """Refuse a model whose sampled tokens score otherwise in the trainer's forward pass.

    Tokens of the prompts, in prompts of unequal length, are sampled from as in the run. Where the
    run's sequences grow beyond a length at which the model may change its positions or its window,
    so do those of the trial; where all its prompts are beyond, so are those of the trial. It
    computes in single precision where kernel and memory allow. The run's random numbers stay as
    they are.
    """
    name = f"model {policy.folder}: {type(policy.model).__name__}"
    other = "take engine = 'vllm', which has its own code for models, or another model"
    shortest, most = min(map(len, prompts)), config.max_response_tokens or 1
    end = max(map(len, prompts)) + most
    end = min(end, max_positions(policy.model) or end)
    n_tokens = max(1, min(_TOKENS, most, end // 2))
    switches = sorted({s for s in _switches(policy.model.config.to_dict()) if 0 < s < end})
    below = next((s for s in switches if s > n_tokens), end)
    several = tuple(min(length, below - n_tokens) for length in _LENGTHS)
    trials = [(several, other), (several[-1:], other)]  # one length needs no mask
    for switch in switches:
        remedy = (
            f"where a sequence grows beyond {switch} tokens; keep it shorter by "
            f"--max-prompt-tokens and --max-response-tokens, or {other}"
        )
        crossing = max(1, switch - n_tokens // 2), *_LENGTHS[:2]
        trials.append((crossing if shortest <= switch else (switch + 1, switch + 4), remedy))
    for lengths, remedy in trials:
        tokens = list(islice(cycle(chain.from_iterable(prompts)), max(lengths)))
        shortened = [tokens[: min(length, end - n_tokens)] for length in lengths]
        try:
            with _widened(policy.model, config.attention):
                gap = _gap(policy, shortened, n_tokens, config)
                allowed = max(1e-4, _ROUNDING * torch.finfo(policy.model.dtype).eps)
        except torch.OutOfMemoryError:
            raise
        except _FAILURES as error:
            raise Unfit(f"{name} cannot be sampled ({first_line(error)}); {remedy}") from error
        if gap == math.inf:
            raise Unfit(
                f"{name} gives log-probs that are not finite, as NaN or infinite weights do; "
                "take another model"
            )
        if gap > allowed:
            raise Unfit(
                f"{name}: sampled tokens differ from a forward pass by {gap:.2g} nats in log-prob, "
                f"and rounding explains {allowed:.2g}; {remedy}"
            )


def check_saving(policy: Policy, run_folder: Path | None) -> None:
    """Write the model as at the end of a run and read it again, or refuse it before the training.

    Of a large model all but the values of the weights: files, names and shapes. All ranks must call
    this, with a folder on one alone.
    """
    model, whole = policy.model, model_bytes(policy.model) <= _WHOLE
    ours = dict(merged_weights(model, merge=whole))
    if whole:
        ours = {n: whole_tensor(w.to(computed_with(w, model))).cpu() for n, w in ours.items()}
    if run_folder is None:
        if whole:
            save_model(policy, None)
        return
    fault = f"model {policy.folder}: {type(model).__name__} could not be saved"
    remedy = "train with save_model false"
    with writing(run_folder):
        folder = TemporaryDirectory(prefix="trial-", dir=run_folder)
    with folder as name, loading(fault, remedy):
        place = Path(name)
        if whole:
            save_model(policy, place)
            dtype = str(next(iter(ours.values())).dtype).removeprefix("torch.")
            read = load_policy(place / "model", "cpu", dtype).model
        else:
            write_model(model, policy.tokenizer, place, policy.folder, weights={})
            with torch.device("meta"):
                loader: Any = AutoModelForCausalLM
                read = loader.from_config(AutoConfig.from_pretrained(place))
        theirs = dict(read.named_parameters())
        same: Any = torch.equal if whole else lambda one, two: one.shape == two.shape
        if ours.keys() != theirs.keys() or not all(same(w, theirs[n]) for n, w in ours.items()):
            raise Unfit(f"{fault}: read again it has other weights; {remedy}")


@contextmanager
def _widened(model: Any, attention: str) -> Iterator[None]:
    """Hold the model's numbers in single precision for a while, unless the GPU has no room."""
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    narrow = [] if attention.startswith("flash") else [t for t in tensors if t.itemsize < 4]
    needed = 8 * sum(tensor.numel() for tensor in narrow)
    if model.device.type == "cuda" and torch.cuda.mem_get_info(model.device)[0] < needed:
        narrow = []
    before = [tensor.data for tensor in narrow]
    try:
        for tensor in narrow:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, data in zip(narrow, before, strict=True):
            tensor.data = data


def _gap(policy: Policy, prompts: Sequence[list[int]], n_tokens: int, config: TrainConfig) -> float:
    """Return how far engine and scorer are apart, in nats a token, in the worst response."""
    engine = TransformersEngine(policy.model, (), policy.pad_token_id, config.max_rows)
    generator = torch.Generator(policy.model.device).manual_seed(0)
    drawn = engine.sample(prompts, _EACH, Sampling(n_tokens, config.temperature), generator)
    rows = zip(prompts, drawn.tokens_PNT, drawn.logprobs_PNT, drawn.lengths_PN, strict=True)
    groups = [unpaid(*row) for row in rows]
    scores = group_scores(Scorer(policy.model), groups, config)
    gaps = [(s[0] - g.old_KT).abs().mean(-1) for s, g in zip(scores, groups, strict=True)]
    gap = torch.cat(gaps)  # NaN where some responses have no finite numbers
    return float(gap.max()) if gap.isfinite().any() else math.inf


def _switches(values: Mapping[str, Any]) -> Iterator[int]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _switches(value)
        elif _SWITCH.search(str(name)):
            listed = value if isinstance(value, list | tuple) else [value]
            yield from (length for length in listed if type(length) is int)
