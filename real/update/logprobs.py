"""Log-probs of response tokens under the model that is trained, with gradient.

The model's body runs to its last hidden states, and the head sees only the tokens that are asked
for. Models whose logits are not `cap(factor * linear(hidden))` run whole: correct, but with all
logits in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.modeling_layers import GradientCheckpointingLayer

from real.update.head import (
    CHUNK_ELEMENTS,
    GPU_CHUNK_ELEMENTS,
    Head,
    TokenScores,
    chunked,
    head_scores,
    score_logits,
)
from real.update.packing import (
    Group,
    Layout,
    MicroBatch,
    PackedRows,
    Place,
    Plan,
    RowCounts,
    cheapest_plan,
    micro_batch,
    row_counts,
)

_PROBE_TOKENS = 6
_MASKED = {"eager", "sdpa"}
"""Kernels that take any mask."""
_RESTARTING = {"full_attention", "sliding_attention"}
"""Kinds of layers that start again where positions do; recurrent ones carry their state over."""


class Scorer(nn.Module):
    """A causal language model as a module whose forward scores tokens.

    With FSDP2, make it first, shard the model's layers, then the scorer itself as the root: all
    that touches weights happens inside its forward, the head included.
    """

    def __init__(self, model: Any, chunk_elements: int | None = None) -> None:
        """Find out how the model makes its logits and what it can bundle, on six tokens.

        Args:
            model: a causal language model of transformers, in evaluation mode, not yet sharded.
            chunk_elements: most logits that exist at once; if None as many as suit the device.
        """
        super().__init__()
        self.model = model
        on_gpu = model.get_input_embeddings().weight.is_cuda
        self.chunk_elements = chunk_elements or (GPU_CHUNK_ELEMENTS if on_gpu else CHUNK_ELEMENTS)
        self.head = find_head(model)
        self.layout: Layout = _layout(model)
        embedding = model.get_input_embeddings().weight
        self.bundle_width: int | None = embedding.shape[1] if can_bundle(model) else None
        """Width of the hidden states where responses can share a prompt, else None."""

    def forward(self, rows: PackedRows, temperature: float, stats: bool = False) -> TokenScores:
        """Scores of `rows.targets_n` at that temperature; `stats` as in `head_scores`."""
        outputs = self.outputs(rows)
        if self.head is None:
            return score_logits(outputs, rows.targets_n, temperature, stats)
        return head_scores(
            self.head, outputs, rows.targets_n, temperature, stats, self.chunk_elements
        )

    def outputs(self, rows: PackedRows) -> Tensor:
        """(n, H) hidden states before the scored tokens; (n, V) logits of an unknown head."""
        inputs: dict[str, Any] = {"input_ids": rows.input_ids_BS, "use_cache": False}
        if rows.position_ids_BS is not None:
            inputs["position_ids"] = rows.position_ids_BS
        if rows.segments_BS is not None:
            inputs["attention_mask"] = _bundle_mask(self.model, rows.segments_BS)
        with checkpointed(self.model):
            if self.head is None:
                return _pick(self.model(**inputs).logits, rows.index_n)
            return _pick(self.model.base_model(**inputs).last_hidden_state, rows.index_n)

    def plan(
        self,
        groups: Sequence[Group],
        counts: Sequence[RowCounts],
        micro_tokens: int,
        world: int = 1,
        only: Collection[int] | None = None,
        bundled: bool = True,
    ) -> Plan:
        """The cheapest passes of a mini-batch, see `passes.cheapest_plan`."""
        width = self.bundle_width if bundled else None
        return cheapest_plan(groups, counts, micro_tokens, self.layout, width, world, only)

    def micro_batch(
        self, groups: Sequence[Group], places: Sequence[Place], bundle: int = 1
    ) -> MicroBatch:
        """Those rows as this model wants them."""
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        most_padded = self.chunk_elements // vocabulary
        return micro_batch(groups, places, self.layout, most_padded, bundle)


def find_head(model: Any) -> Head | None:
    """Map from the body's hidden states to logits, checked on six tokens.

    Returns:
        None if its logits are not those of any head that is known here.
    """
    body, linear = model.base_model, model.get_output_embeddings()
    if body is model or linear is None or not hasattr(linear, "weight"):
        return None
    ids = torch.arange(_PROBE_TOKENS, device=linear.weight.device)[None] % linear.weight.shape[0]
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state
        tolerance = 4 * torch.finfo(expected.dtype).eps * expected.abs().max()
        for head in _heads(model.config.get_text_config(), linear):
            logits = head.logits(hidden)
            # Not within the tolerance either where a value is NaN.
            if logits.shape == expected.shape and (logits - expected).abs().max() <= tolerance:
                return head
    return None


@torch.no_grad()
def group_logprobs(
    scorer: Scorer,
    groups: Sequence[Group],
    temperature: float,
    micro_tokens: int,
    share: tuple[int, int] = (0, 1),
    bundled: bool = True,
) -> list[Tensor]:
    """(K, T) log-probs of every group's responses, without gradient, packed like the loss.

    Padding, and tokens whose `old_KT` is not finite, get NaN. `share` is rank and number of ranks,
    which divide the passes and get all values; as in the loss all run equally many. Without
    `bundled` no responses share a sequence, in which a NaN of one would reach the others.
    """
    world = share[1]
    logprobs = [torch.zeros_like(group.old_KT, dtype=torch.float32) for group in groups]
    passes = _scored(scorer, groups, temperature, micro_tokens, share, bundled=bundled)
    for places, batch, scores in passes:
        values_RT = batch.unfold(scores.logprobs_n).float()
        values_RT = torch.where(batch.counted_RT, values_RT, 0.0)
        for (index, row), values_T in zip(places, values_RT, strict=bool(places)):
            logprobs[index][row, : len(values_T)] = values_T[: logprobs[index].shape[1]]
    if world > 1 and dist.is_initialized():
        for values_KT in logprobs:
            dist.all_reduce(values_KT)
    pairs = zip(groups, logprobs, strict=True)
    return [torch.where(group.counted_KT, values, torch.nan) for group, values in pairs]


@torch.no_grad()
def group_stats(
    scorer: Scorer,
    groups: Sequence[Group],
    temperature: float,
    micro_tokens: int,
    share: tuple[int, int] = (0, 1),
) -> list[Tensor]:
    """(2, K) mean entropy and self-certainty over the counted tokens of every group's responses.

    In nats and double precision; the second is `TokenScores.self_certainty_n`. NaN for responses
    without a counted token. One forward pass without gradient, shared as by `group_logprobs`.
    """
    group_sums = [
        group.old_KT.new_zeros((2, len(group.old_KT)), dtype=torch.float64) for group in groups
    ]
    for places, batch, scores in _scored(scorer, groups, temperature, micro_tokens, share, True):
        assert scores.entropy_n is not None and scores.self_certainty_n is not None
        values_2n = torch.stack([scores.entropy_n, scores.self_certainty_n]).double()
        counted_RT = batch.counted_RT
        sums_R2 = [torch.where(counted_RT, batch.unfold(v_n), 0.0).sum(1) for v_n in values_2n]
        for (index, row), sums_2 in zip(places, torch.stack(sums_R2, dim=1), strict=bool(places)):
            group_sums[index][:, row] = sums_2
    if share[1] > 1 and dist.is_initialized():
        for sums_2K in group_sums:
            dist.all_reduce(sums_2K)
    return [sums / group.counted_KT.sum(1) for group, sums in zip(groups, group_sums, strict=True)]


def _scored(
    scorer: Scorer,
    groups: Sequence[Group],
    temperature: float,
    micro_tokens: int,
    share: tuple[int, int],
    stats: bool = False,
    bundled: bool = True,
) -> Iterator[tuple[list[Place], MicroBatch, TokenScores]]:
    """A rank's passes: places of the rows, the rows, their scores; no places where it is idle."""
    rank, world = share
    counts = [row_counts(group) for group in groups]
    passes, bundle, _ = scorer.plan(groups, counts, micro_tokens, world, bundled=bundled)
    for places in passes[rank::world]:
        batch = scorer.micro_batch(groups, places or passes[0][:1], bundle)
        yield places, batch, scorer(batch.rows, temperature, stats)


def _pick(outputs_BSH: Tensor, index_n: Tensor | int) -> Tensor:
    """(n, H) the outputs that predict scored tokens."""
    if isinstance(index_n, int):
        return outputs_BSH[:, -index_n:].flatten(0, 1)
    return outputs_BSH.flatten(0, 1).index_select(0, index_n)


def _heads(config: Any, linear: Any) -> list[Head]:
    softcap = getattr(config, "final_logit_softcapping", None)
    named = [getattr(config, name, None) for name in ("logit_scale", "logits_scaling")]
    factors = [1.0, *(float(n) for n in named if n), *(1 / float(n) for n in named if n)]
    return [Head(linear, factor, softcap) for factor in factors]


def _layout(model: Any) -> Layout:
    config = model.config.get_text_config()
    flash = "flash" in (getattr(config, "_attn_implementation", None) or "")
    restarts = set(getattr(config, "layer_types", None) or []) <= _RESTARTING
    return "packed" if flash and restarts and not model._is_stateful else "padded"


@torch.no_grad()
def can_bundle(model: Any) -> bool:
    """Return whether a response scores the same behind a prompt that others share.

    Kernels and layers that cannot are known by name. Models also differ in what they make of given
    positions and masks, so the others are tried: two responses of two tokens to a prompt of two.
    """
    config, body = model.config.get_text_config(), model.base_model
    windows = getattr(config, "layer_types", None) or [getattr(config, "sliding_window", None)]
    kernel = getattr(config, "_attn_implementation", None)
    if set(windows) - {"full_attention", None} or kernel not in _MASKED or model._is_stateful:
        return False
    device = model.get_input_embeddings().weight.device
    tokens = torch.arange(_PROBE_TOKENS, device=device) % config.vocab_size
    prompt, responses = tokens[:2], tokens[2:].view(2, 2)
    alone = torch.cat([prompt.expand(2, -1), responses], dim=1)
    segments = torch.tensor([[0, 0, 1, 1, 2, 2]], device=device)
    positions = torch.tensor([[0, 1, 2, 3, 2, 3]], device=device)
    bundled = {"position_ids": positions, "attention_mask": _bundle_mask(model, segments)}
    try:
        expected = body(input_ids=alone, use_cache=False)[0][:, 2:]
        found = body(input_ids=tokens[None], use_cache=False, **bundled)[0][:, 2:]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    tolerance = 8 * torch.finfo(expected.dtype).eps * expected.abs().max()
    return bool((found.view_as(expected) - expected).abs().max() <= tolerance)


def _bundle_mask(model: Any, segments_BS: Tensor) -> Tensor:
    """(B, 1, S, S) mask of bundles: bool, or for the eager kernel to be added to the scores."""
    own_BSS = segments_BS[:, :, None] == segments_BS[:, None, :]
    mask_BSS = (own_BSS | (segments_BS == 0)[:, None, :]).tril_()
    if model.config.get_text_config()._attn_implementation == "eager":
        dtype = model.get_input_embeddings().weight.dtype
        zeros = torch.zeros_like(mask_BSS, dtype=dtype)
        mask_BSS = zeros.masked_fill_(~mask_BSS, torch.finfo(dtype).min)
    return mask_BSS[:, None]


@contextlib.contextmanager
def checkpointed(model: Any) -> Iterator[None]:
    """Let layers keep no activations, if the model is set to do so.

    transformers does it in training mode only, in which dropout would be at work too; so the mark
    is set on the layers alone, and not on what is inside of them.
    """
    if not (torch.is_grad_enabled() and getattr(model, "is_gradient_checkpointing", False)):
        yield
        return
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    before = [layer.training for layer in layers]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer, was in zip(layers, before, strict=True):
            cast(nn.Module, layer).training = was


class EntropyScorer(Scorer):
    """A `Scorer` whose entropies have a gradient; its log-probs, without one, are as before."""

    def forward(self, rows: PackedRows, temperature: float, stats: bool = False) -> TokenScores:
        """Entropies where gradients are recorded, and no log-probs then; else as a `Scorer`."""
        if not torch.is_grad_enabled():
            return super().forward(rows, temperature, stats)
        outputs = self.outputs(rows)
        if self.head is None:
            entropy_n = entropies(outputs, temperature)
        else:
            entropy_n = head_entropies(self.head, outputs, temperature, self.chunk_elements)
        return TokenScores(torch.full_like(entropy_n, torch.nan), entropy_n)


def head_entropies(
    head: Head, hidden_nH: Tensor, temperature: float, chunk_elements: int = CHUNK_ELEMENTS
) -> Tensor:
    """Entropies from the hidden states before the tokens, with gradient.

    Args:
        hidden_nH: (n, H) last hidden states.

    Returns:
        (n,) in nats, at least single precision.
    """
    no_targets_n = hidden_nH.new_zeros(len(hidden_nH), dtype=torch.long)
    return chunked(head, hidden_nH, no_targets_n, _Entropies(temperature), chunk_elements)[0]


def entropies(logits_nV: Tensor, temperature: float) -> Tensor:
    """(n,) entropies of (n, V) logits in nats, with gradient; impossible tokens add nothing."""
    return _Entropy.apply(logits_nV, temperature)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class _Entropies:
    """The numbers of `entropies`, which no target changes."""

    temperature: float

    def __call__(self, logits_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, ...]:
        return (entropies(logits_nV, self.temperature),)

    def grad_logits(self, logits_nV: Tensor, targets_n: Tensor, grad_n: Tensor) -> Tensor:
        return _grad_logits(logits_nV, grad_n, self.temperature)

    def scaled(self, factor: float) -> _Entropies:
        return replace(self, temperature=self.temperature / factor)


class _Entropy(torch.autograd.Function):
    """Closed-form gradient: automatic differentiation would make NaN of impossible tokens."""

    @staticmethod
    def forward(ctx: Any, logits_nV: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(logits_nV)
        ctx.temperature = temperature
        return _entropy(_logp(logits_nV, temperature))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (logits_nV,) = ctx.saved_tensors
        return _grad_logits(logits_nV, grads[0], ctx.temperature).to(logits_nV.dtype), None


def _logp(logits_nV: Tensor, temperature: float) -> Tensor:
    wide = torch.promote_types(logits_nV.dtype, torch.float32)
    return torch.log_softmax(logits_nV.to(wide) / temperature, dim=-1)


def _entropy(logp_nV: Tensor) -> Tensor:
    return torch.special.entr(logp_nV.exp()).sum(-1)


def _grad_logits(logits_nV: Tensor, grad_n: Tensor, temperature: float) -> Tensor:
    """(n, V) gradient of the raw logits: `-g p_v (log p_v + H) / temperature`."""
    logp_nV = _logp(logits_nV, temperature)
    p_nV = logp_nV.exp()
    entropy_n1 = torch.special.entr(p_nV).sum(-1, keepdim=True)
    surprise_nV = torch.where(p_nV > 0, logp_nV, 0.0).add_(entropy_n1)
    return p_nV.mul_(surprise_nV).mul_((-grad_n / temperature)[:, None])
