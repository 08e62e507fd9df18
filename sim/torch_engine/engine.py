"""The simulation on PyTorch: all replicates as one leading axis, on a GPU or a CPU.

It is the run of `sim.engine.simulation`, from the same words of the same coordinates, with
guard_core deciding
on tensors. The trace is that of the other engines but for rounding: the exponential and the order
of some sums differ in the last bit. Where that moves a bound of the vote past one of the uniform
numbers, a vote goes to another answer and the run takes another path from there; about one vote in
10^15 does. On one device the same seed gives the same bits.

Nothing in an epoch waits for the device: its columns are fetched once at the end, while the next
epoch is computed already. Logits that are not finite are found there, by the norms of the updates:
while these are finite no sum of changes comes near the largest number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guard_core import Draws, Votes
from lab.errors import UserError
from sim.engine.rows import Epoch as Rows
from sim.engine.rows import Tables, tables
from sim.settings.config import SimConfig
from sim.torch_engine.device import Columns, Landing, Replay, choose_device, upload
from sim.torch_engine.guard import Epoch, TorchGuard
from sim.torch_engine.policies import POLICIES
from sim.torch_engine.votes import Ballot
from sim.torch_engine.words import fold, seed_key, unit
from sim.world import random
from sim.world.populations import draw_population

_WORDS = 2**26
"""Numbers of one tensor that are made at once where the batch does not set how many."""


class _Inputs(NamedTuple):
    """What changes from epoch to epoch; the tensors stay, so that kernels can be replayed."""

    epoch: Tensor
    """0-d."""
    order_RN: Tensor
    rate_B: Tensor
    """Step size of every batch."""


class TorchSimulation:
    """One run: `for part in TorchSimulation(config).run()` yields the rows of every epoch."""

    def __init__(self, config: SimConfig) -> None:
        """Draw the population and start the policy.

        Raises:
            UserError: the device is missing, or a file of the settings has a defect.
        """
        self.config = c = config
        self.device = choose_device(c.device)
        population = draw_population(c, threads=os.cpu_count() or 1)
        self._truth_RN = upload(population.truth_RN, self.device)
        self._policy = POLICIES[c.policy](c, population, self.device)
        self._guard = TorchGuard(c, self.device)
        self._ballot = Ballot(c.n_votes, c.n_samples, 1.0 - c.unparseable, self.device)
        self._problems_N = torch.arange(c.n_problems, device=self.device)
        last = c.first_replicate + c.replicates
        numbers_R = torch.arange(c.first_replicate, last, device=self.device)
        self._key_R = fold(seed_key(c.seed, self.device), numbers_R)
        self._in = _Inputs(
            torch.zeros((), dtype=torch.int64, device=self.device),
            self._problems_N.repeat(c.replicates, 1),
            torch.zeros(c.n_batches, dtype=torch.float64, device=self.device),
        )
        self._landing = Landing(self.device)
        recorded = self.device.type == "cuda" and c.cuda_graph
        self._visit: Callable[[], Columns] = (
            Replay(self._visit_all) if recorded else self._visit_all
        )

    def run(self) -> Iterator[Tables]:
        """Visit 0 first, then one epoch after the other."""
        epochs = self.config.epochs
        columns = self._before()
        for epoch in range(epochs + 1):
            landed = self._landing.fetch(columns)
            self._check(epoch, landed)
            if epoch < epochs:
                # The device computes on while the host makes rows of what has landed.
                columns = self._start(epoch + 1)
            yield self._tables(epoch, landed)

    def _before(self) -> Columns:
        """Vote on every problem before training and start the guard with it."""
        epoch = self._begin()
        votes = [self._vote(at, epoch)[0] for at in self._chunks(self.config.n_votes)]
        counts_RNA, samples_RNA = (
            torch.cat(parts, 1)
            for parts in zip(*((v.counts, v.samples) for v in votes), strict=True)
        )
        whole = replace(votes[0], counts=counts_RNA, samples=samples_RNA)
        seen = self._guard.prime(whole, epoch)
        return self._columns(epoch, seen | self._kept([counts_RNA]))

    def _start(self, epoch: int) -> Columns:
        """Have the device visit every problem once."""
        self._in.epoch.fill_(epoch)
        self._in.rate_B.copy_(upload(self._rates(epoch), self.device))
        keys_RN = self._uniforms(random.ORDER, self._problems_N)
        self._in.order_RN.copy_(keys_RN.argsort(dim=1, stable=True))
        return self._visit()

    def _visit_all(self) -> Columns:
        """An epoch on the device; all that it depends on is in `_in` and the state."""
        c = self.config
        epoch = self._begin()
        self._guard.begin(epoch)
        norms, counts = [], []
        for batch in range(c.n_batches):
            start = batch * c.batch_size
            at = slice(start, min(start + c.batch_size, c.n_problems))
            votes, p_RPA = self._vote(at, epoch)
            counts.append(votes.counts)
            step = self._guard.step(at, votes, p_RPA)
            norms.append(self._policy.update(at, self._in.rate_B[batch], step))
        seen = self._guard.end() | {"norm": torch.cat(norms, 1)}
        return self._columns(epoch, seen | self._kept(counts))

    def _begin(self) -> Epoch:
        order_RN = self._in.order_RN
        tie, skip, pick = (
            self._uniforms(purpose, order_RN) for purpose in (random.TIE, random.SKIP, random.PICK)
        )
        self._policy.begin(order_RN)
        self._vote_key_RN = fold(self._stream(random.VOTES), order_RN)
        return Epoch(order_RN, self._truth_RN.gather(1, order_RN), Draws(tie, skip, pick))

    def _kept(self, counts: list[Tensor]) -> Columns:
        """The counts (R, P, A) that go into the trace, as one column (S, N, A)."""
        n_kept = min(self.config.vote_replicates, self.config.replicates)
        return {"counts": torch.cat([c[:n_kept] for c in counts], 1)} if n_kept else {}

    def _columns(self, epoch: Epoch, seen: Columns) -> Columns:
        """Everything that the host needs of an epoch; ends it."""
        pass_R = self._pass_at_1(epoch.truth_RN)
        self._policy.end()
        same = {"order": epoch.order_RN.int(), "truth": epoch.truth_RN.int()}
        return seen | same | {"pass_at_1": pass_R}

    def _pass_at_1(self, truth_RN: Tensor) -> Tensor:
        """(R,) chance that one response to a problem is right, mean over all problems."""
        c = self.config
        total_R = torch.zeros(c.replicates, dtype=torch.float64, device=self.device)
        for at in self._chunks(c.n_answers * (c.feature_dim if c.policy == "features" else 1)):
            p_RPA = torch.softmax(self._policy.logits(at), dim=-1)
            total_R += p_RPA.gather(-1, truth_RN[:, at, None]).sum((1, 2))
        return (1 - c.unparseable) * total_R / c.n_problems

    def _vote(self, at: slice, epoch: Epoch) -> tuple[Votes, Tensor]:
        p_RPA = torch.softmax(self._policy.logits(at), dim=-1)
        return self._ballot.draw(self._vote_key_RN[:, at], p_RPA), p_RPA

    def _uniforms(self, purpose: int, problems: Tensor) -> Tensor:
        """(R, N) uniform numbers of the problems, (R, N) or (N,)."""
        return unit(fold(self._stream(purpose), problems))

    def _stream(self, purpose: int) -> Tensor:
        """(R, 1) keys of the epoch, see `sim.world.random.stream`."""
        return fold(fold(self._key_R, purpose), self._in.epoch)[:, None]

    def _chunks(self, numbers: int) -> list[slice]:
        """The visits in parts that need `_WORDS` numbers at once, given those of one visit."""
        size = max(1, _WORDS // (self.config.replicates * numbers))
        N = self.config.n_problems
        return [slice(start, min(start + size, N)) for start in range(0, N, size)]

    def _check(self, epoch: int, landed: dict[str, NDArray[Any]]) -> None:
        c = self.config
        if epoch == 0 or (finite_RN := np.isfinite(landed["norm"])).all():
            return
        batch = int((~finite_RN).any(axis=0).argmax()) // c.batch_size
        at = slice(batch * c.batch_size, (batch + 1) * c.batch_size)
        r, p = np.argwhere(~finite_RN[:, at])[0]
        raise UserError(
            f"step = {c.step}: the logits of problem {landed['order'][r, at][p]} are not finite "
            f"at visit {epoch} (replicate {c.first_replicate + r}, batch "
            f"{(epoch - 1) * c.n_batches + batch + 1}); take a smaller step"
        )

    def _rates(self, epoch: int) -> NDArray[np.float64]:
        """Step size of every batch."""
        B = self.config.n_batches
        return np.array([self.config.step_at((epoch - 1) * B + batch) for batch in range(B)])

    def _tables(self, epoch: int, landed: dict[str, NDArray[Any]]) -> Tables:
        c = self.config
        passes_R = landed.pop("pass_at_1").copy()
        order_RN, truth_RN = landed.pop("order"), landed.pop("truth")
        rows = Rows(epoch, order_RN, truth_RN, landed, counts_SNA=landed.pop("counts", None))
        if epoch:
            rows = replace(rows, norm_RN=landed.pop("norm"), lr_B=self._rates(epoch))
        return tables(c, rows, passes_R)
