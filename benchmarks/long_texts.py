"""Cost of observations of texts for long responses, as language models write them.

The tiny task's responses are 22 tokens of scratch work, and most are equal. Here they are made-up
working of many lines with formulas and claims, all different. The cost per token is fixed, while a
model's depends on the model: so what counts is how fast a trainer may be for 1 % of its step.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable, Sequence

import torch
from stopwatch import now

from real.engines.rollouts import Rollouts
from real.vote.observe import similarities, step_logprobs
from real.vote.tool import tool_verdicts

_PIECE = re.compile(r" ?\\?[A-Za-z]+|\n+| ?\d{1,3}| ?.", re.DOTALL)
"""About what tokenizers of language models cut text into."""
_SENTENCES = (
    "First, let us compute ${a} + {b} = {sum}$.",
    "We know that the total is {sum}, so ${v} = {sum} - {b} = {a}$.",
    "Therefore \\[ {v}^2 + {a}{v} - {b} = 0, \\] which does not factor.",
    "Multiplying both sides by {a}, we obtain \\({a} \\times {b} = {product}\\).",
    "Wait, let me check that {product} leaves no remainder when it is divided by {a}.",
    "There are \\frac{{{a} \\cdot {b}}}{{2}} ways to choose them, since their order is no matter.",
    "However, we must be careful at the ends, for the problem says strictly less than.",
    "So the triangle has two equal sides, and the angle at {v} is twice the one at the base.",
)


class Words:
    """A tokenizer whose tokens are the pieces of known texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.pieces = list(dict.fromkeys(piece for text in texts for piece in cut(text)))
        self.ids = {piece: place for place, piece in enumerate(self.pieces)}

    def __len__(self) -> int:
        return len(self.pieces)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of tokens; none is special."""
        return "".join(self.pieces[token] for token in tokens)


def cut(text: str) -> list[str]:
    """The tokens of a text."""
    return _PIECE.findall(text)


def working(rng: random.Random, tokens: int) -> str:
    """A response of about so many tokens."""
    parts: list[str] = []
    n = 0
    while n < tokens:
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        sentence = rng.choice(_SENTENCES).format(
            a=a, b=b, v=rng.choice("xyn"), sum=a + b, product=a * b
        )
        parts += [sentence, rng.choice((" ", " ", "\n", "\n\n"))]
        n += len(cut(parts[-2])) + 1
    return "".join([*parts, f"The answer is \\boxed{{{rng.randint(1, 99)}}}."])


def seconds_a_token(
    n_votes: int = 64, n_samples: int = 32, tokens: int = 1000, rounds: int = 5
) -> dict[str, float]:
    """CPU seconds per token of the votes, of every observation of texts.

    Args:
        n_votes: responses to a problem.
        n_samples: those of them that are compared with each other.
        tokens: of a response.
        rounds: over all, of which the median counts.
    """
    rng = random.Random(0)
    texts = [working(rng, tokens) for _ in range(n_votes)]
    words = Words(texts)
    rollouts = _rollouts([[words.ids[piece] for piece in cut(text)] for text in texts])
    works: dict[str, Callable[[], object]] = {
        "tool": lambda: tool_verdicts(texts, "a problem"),
        "similarity": lambda: similarities([texts[:n_samples]]),
        "step_logprob": lambda: step_logprobs(rollouts, words),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = now()
            work()
            times[name].append(now().minus(start).cpu)
    n_tokens = int(rollouts.lengths_PN.sum())
    return {name: statistics.median(found) / n_tokens for name, found in times.items()}


def _rollouts(rows: Sequence[Sequence[int]]) -> Rollouts:
    lengths_1V = torch.tensor([[len(row) for row in rows]])
    tokens_1VT = torch.zeros((1, len(rows), int(lengths_1V.max())), dtype=torch.int64)
    for place, row in enumerate(rows):
        tokens_1VT[0, place, : len(row)] = torch.tensor(row)
    logprobs_1VT = torch.full(tokens_1VT.shape, -0.5)
    return Rollouts(tokens_1VT, logprobs_1VT, lengths_1V, lengths_1V > 0, 0)
