"""Log-probabilities of responses, and the gradients of single tokens' log-probabilities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call, grad, vmap

Tokens = tuple[int, ...]

_GRADIENT_BYTES = 128 * 2**20
"""Memory for the gradients of one batch of tokens."""
_ROWS = 1024
"""Responses of one forward pass."""


@torch.no_grad()
def log_probs(
    model: Any, prompt: Sequence[int], responses: Sequence[Tokens], temperature: float, pad: int
) -> list[NDArray[np.float32]]:
    """Log-probabilities of every token after every prefix of some responses to one prompt.

    Args:
        model: a causal language model.
        prompt: token ids.
        responses: token ids.
        temperature: divides the logits.
        pad: any token id; fills up short responses.

    Returns:
        Per response a (T, A) array over its T prefixes and the vocabulary of A tokens.
    """
    longest = max(map(len, responses))
    filled = [[*prompt, *tokens, *[pad] * (longest - len(tokens))] for tokens in responses]
    ids_RL = torch.tensor(filled, device=model.device)[:, :-1]
    parts: list[NDArray[np.float32]] = []
    for start in range(0, len(responses), _ROWS):
        logits = model(input_ids=ids_RL[start : start + _ROWS], use_cache=False).logits
        log_p_RTA = torch.log_softmax(logits[:, len(prompt) - 1 :].float() / temperature, -1)
        parts += list(log_p_RTA.cpu().numpy())
    return [log_p_TA[: len(tokens)] for log_p_TA, tokens in zip(parts, responses, strict=True)]


@torch.no_grad()
def next_log_probs(
    model: Any, contexts: Sequence[Sequence[int]], tokens: Sequence[int], temperature: float
) -> NDArray[np.float64]:
    """Log-probabilities (E,) of single tokens after their contexts."""
    log_p = np.zeros(len(tokens))
    for batch in _of_equal_length(contexts, _ROWS):
        ids_EL = torch.tensor([contexts[e] for e in batch], device=model.device)
        logits = model(input_ids=ids_EL, use_cache=False, logits_to_keep=1).logits[:, -1]
        log_p_EA = torch.log_softmax(logits.double() / temperature, -1)
        log_p[batch] = log_p_EA.cpu().numpy()[range(len(batch)), [tokens[e] for e in batch]]
    return log_p


def _of_equal_length(contexts: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Places of contexts of one length, at most `size` at a time."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for place, context in enumerate(contexts):
        by_length[len(context)].append(place)
    for _, places in sorted(by_length.items()):
        for start in range(0, len(places), size):
            yield places[start : start + size]


class TokenGradients:
    """Gradients of log p(token | context) with respect to the trained weights of a model."""

    def __init__(self, model: Any, temperature: float) -> None:
        """Take the weights that require a gradient.

        Args:
            model: a causal language model with eager attention, which `vmap` can differentiate.
            temperature: divides the logits.
        """
        self._model, self._temperature = model, temperature
        named = list(model.named_parameters())
        self._weights = {name: p.detach() for name, p in named if p.requires_grad}
        self._fixed = {name: p.detach() for name, p in named if not p.requires_grad}
        self.n_weights = sum(p.numel() for p in self._weights.values())
        """d, weights that training moves."""
        self._gradient = vmap(grad(self._log_p), (None, 0, 0))
        self._batch = max(1, _GRADIENT_BYTES // (4 * self.n_weights))

    def __call__(
        self,
        contexts: Sequence[Sequence[int]],
        tokens: Sequence[int],
        coordinates: NDArray[np.int64],
        report: Callable[[int], object] = lambda _: None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Gradients of E tokens.

        Args:
            contexts: (E,) token ids of prompt and prefix; those of one length share a batch.
            tokens: (E,) the tokens.
            coordinates: (D,) places of the wanted weights among all d.
            report: called with the number of tokens done since the last call.

        Returns:
            features: (E, D) the gradient on the coordinates.
            norm2: (E,) squared norm on all weights.
        """
        features = np.zeros((len(tokens), len(coordinates)), np.float32)
        norm2 = np.zeros(len(tokens))
        places = torch.as_tensor(coordinates, device=self._model.device)
        for batch, flat in self._batches(contexts, tokens):
            features[batch] = flat[:, places].cpu().numpy()
            norm2[batch] = flat.square().sum(1).cpu().numpy()
            report(len(batch))
        return features, norm2

    def sizes(
        self, contexts: Sequence[Sequence[int]], tokens: Sequence[int]
    ) -> NDArray[np.float64]:
        """(d,) root mean square of the gradients of E tokens, each divided by its norm."""
        total = torch.zeros(self.n_weights, dtype=torch.float64, device=self._model.device)
        for _, flat in self._batches(contexts, tokens):
            norm2 = flat.square().sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
            total += (flat.square() / norm2).sum(0)
        return (total / len(tokens)).sqrt().cpu().numpy()

    def _batches(
        self, contexts: Sequence[Sequence[int]], tokens: Sequence[int]
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Places of some tokens, and their gradients on all weights."""
        device = self._model.device
        for batch in _of_equal_length(contexts, self._batch):
            ids_EL = torch.tensor([contexts[e] for e in batch], device=device)
            tokens_E = torch.tensor([tokens[e] for e in batch], device=device)
            parts = self._gradient(self._weights, ids_EL, tokens_E)
            yield batch, torch.cat([parts[name].flatten(1) for name in self._weights], 1)

    def start(self, coordinates: NDArray[np.int64]) -> NDArray[np.float32]:
        """(D,) values of the weights at the given places."""
        flat = torch.cat([weight.flatten() for weight in self._weights.values()])
        places = torch.as_tensor(coordinates, device=flat.device)
        return flat[places].float().cpu().numpy()

    def _log_p(
        self, weights: dict[str, torch.Tensor], ids_L: torch.Tensor, token: torch.Tensor
    ) -> torch.Tensor:
        arguments = {"input_ids": ids_L[None], "use_cache": False, "logits_to_keep": 1}
        output = functional_call(self._model, {**weights, **self._fixed}, (), arguments)
        log_p_A = torch.log_softmax(output.logits[0, -1] / self._temperature, -1)
        return log_p_A.index_select(0, token[None])[0]
