"""What a decoding loop has drawn so far."""

from __future__ import annotations

import torch

from real.engines.rollouts import Rollouts
from real.engines.token_spread import Spreads


class Samples:
    """What was drawn so far for all R rows, and which B of them are still in the batch."""

    def __init__(
        self, steps: int, rows: int, pad: int, eos_token_ids: list[int], device: torch.device
    ) -> None:
        """Nothing drawn yet: room for `steps` tokens of each of `rows` responses."""
        self.pad = pad
        self.eos = torch.tensor(eos_token_ids, device=device, dtype=torch.int64)
        self.tokens_TR = torch.full((steps, rows), pad, device=device)
        self.logprobs_TR = torch.zeros((steps, rows), device=device)
        self.lengths_R = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished_R = torch.zeros(rows, dtype=torch.bool, device=device)
        self.rows_B = torch.arange(rows, device=device)
        self.spread: Spreads | None = None
        self.used = 0

    def look(self, logprobs_BA: torch.Tensor, probs_BA: torch.Tensor) -> None:
        """Take in the distributions that the next token to be recorded is drawn from."""
        if self.spread is None:
            self.spread = Spreads(len(self.lengths_R))
        self.spread.add(self.rows_B, logprobs_BA, probs_BA)

    def record(self, step: int, token_B: torch.Tensor, logprob_B: torch.Tensor) -> torch.Tensor:
        """Write one token a row; rows that ended earlier get padding. Returns who goes on, (B,)."""
        running_B = ~self.finished_R[self.rows_B]
        self.tokens_TR[step, self.rows_B] = torch.where(running_B, token_B, self.pad)
        self.logprobs_TR[step, self.rows_B] = torch.where(running_B, logprob_B, 0.0)
        self.lengths_R[self.rows_B] += running_B
        self.used = step + 1
        if not len(self.eos):
            return running_B
        ends_B = running_B & (token_B[:, None] == self.eos).any(-1)
        self.finished_R[self.rows_B] |= ends_B
        return running_B & ~ends_B

    def rollouts(self, version: int) -> Rollouts:
        """The samples, rows in place of prompts and samples."""
        tokens_RT, logprobs_RT = self.tokens_TR[: self.used].T, self.logprobs_TR[: self.used].T
        means = self.spread.means(self.lengths_R) if self.spread else (None, None)
        return Rollouts(tokens_RT, logprobs_RT, self.lengths_R, self.finished_R, version, *means)


def join(parts: list[Rollouts], n_prompts: int, n: int, pad_token_id: int) -> Rollouts:
    """Rollouts of chunks of rows (R, T) as those of P prompts, N responses each."""
    longest = max(part.tokens_PNT.shape[-1] for part in parts)

    def rows(tensors: list[torch.Tensor], fill: float) -> torch.Tensor:
        padded = [
            torch.nn.functional.pad(tensor, (0, longest - tensor.shape[-1]), value=fill)
            for tensor in tensors
        ]
        return torch.cat(padded).view(n_prompts, n, longest)

    def told(tensors: list[torch.Tensor | None]) -> torch.Tensor | None:
        found = [tensor for tensor in tensors if tensor is not None]
        return torch.cat(found).view(n_prompts, n) if found else None

    return Rollouts(
        rows([part.tokens_PNT for part in parts], pad_token_id),
        rows([part.logprobs_PNT for part in parts], 0.0),
        torch.cat([part.lengths_PN for part in parts]).view(n_prompts, n),
        torch.cat([part.finished_PN for part in parts]).view(n_prompts, n),
        parts[0].version,
        told([part.entropy_PV for part in parts]),
        told([part.certainty_PV for part in parts]),
    )
