"""Ranks that no longer run or go on: ended, stopped or hanging processes, and silent machines.

A rank sees the processes of its own machine and needs no sign of life of theirs: one that is busy
for minutes runs, even in a kernel that holds Python's lock. Machines beat: every rank of a machine
adds to the machine's count in the store, and watches the count of the next machine. All ranks begin
the same collectives in the same order: one that has begun fewer than another holds that one up,
unless it waits for an engine that gives signs of life.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import torch.distributed as dist

POLL_SECONDS = 0.3
"""Time between two looks at the store, and at the processes of this machine."""
LOST_SECONDS = 15.0
"""Time after which a process that is stopped, as by SIGSTOP, and a machine without a beat count as
lost."""
REASON, TOLD = "guard-train/failed", "guard-train/told"
"""Keys of the store: the reason of the first failure, and the number of ranks that know it."""
DIED = "its process has died"
_BEAT = "guard-train/beat/{}"
"""Key of the count of a machine, which its first rank names."""
_BEGUN = "guard-train/begun/{}"
"""Key of the numbers of collectives that a rank has begun, and of its engine's signs of life."""
_LOOKS_APART = 5
"""Looks between two exchanges of these numbers."""
_OWN_SECONDS = 5.0
"""Time that a rank has to notice by itself, and say where, that others wait for it."""


class Others:
    """The other ranks: whether their processes run, and whether their machines answer.

    A thread of its own talks to the store, which may be silent as well. Times are counted in
    looks: while this process is stopped itself, as all may be, they do not pass.
    """

    def __init__(self, store: Any, rank: int, world: int, patience: float) -> None:
        """Meet the others and start to listen; all ranks must call this.

        Args:
            store: that all ranks share; a connection of its own.
            rank: of this process.
            world: number of ranks.
            patience: seconds that others may wait for a rank that begins no collective.
        """
        self.reason: str | None = None
        """Of the first failure, as the store has it."""
        self.cut_off = False
        """The connection to the store is lost."""
        self.n_signs = 0
        """Signs of life of what this rank waits for, its engine."""
        self._store, self._rank, self._patience = store, rank, patience
        self._begun_R = self._before_R = world * [(0, 0)]
        store.set(_BEGUN.format(rank), "0 0")
        self.neighbours, machines = _met(store, rank, world)
        own = next(i for i, ranks in enumerate(machines) if rank in ranks)
        following = machines[(own + 1) % len(machines)]
        self._machine, self._next = min(machines[own]), min(following)
        self._n_answers = self._beat = 0
        self._seen = (0, 0)
        self._looks = Counter[str | int]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._over.set()
        self._thread.join()

    def dead(self) -> list[int]:
        """Return the ranks of this machine whose process has ended."""
        return [rank for rank, pid in self.neighbours.items() if _state(pid) in "ZX"]

    def look(self) -> None:
        """Count for how long others were stopped or silent; to be called every `POLL_SECONDS`."""
        for rank, pid in self.neighbours.items():
            self._count(rank, _state(pid) == "T")
        begun_R, before_R = self._begun_R, self._before_R
        most = max(begun_R)[0]
        for rank, (begun, before) in enumerate(zip(begun_R, before_R, strict=True)):
            self._count(_BEGUN.format(rank), before == begun and begun[0] < most)
        self._before_R = begun_R
        if self._next == self._machine:
            return
        n_answers, beat = self._seen
        self._seen = self._n_answers, self._beat
        answered = self._n_answers != n_answers
        self._count("store", not answered)
        if answered:
            self._count("beat", self._beat == beat)

    def lost(self) -> dict[int, str]:
        """Return the ranks that no longer run, each with what happened to it."""
        stopped = f"its process was stopped {LOST_SECONDS:.0f} seconds ago"
        silent = f"its machine has been silent for {LOST_SECONDS:.0f} seconds"
        found = dict.fromkeys(self._hanging(), self.hangs)
        found |= dict.fromkeys(self._silent(), silent)
        found |= dict.fromkeys(self._stopped(), stopped)
        return found | dict.fromkeys(self.dead(), DIED)

    def paused(self, rank: int) -> bool:
        """Return whether the process of a rank of this machine is stopped, since whenever."""
        return self._looks[rank] > 0

    @property
    def mute(self) -> bool:
        """The store, on another machine, does not answer."""
        return self._machine != 0 and self._for_long("store")

    @property
    def hangs(self) -> str:
        """What is said of a rank that others wait for."""
        seconds = f"{self._patience:.0f} seconds (rank_timeout, raise it for longer work)"
        return f"it has kept the others waiting for {seconds}"

    @property
    def hangs_here(self) -> bool:
        """The others wait for this rank."""
        return self._waited_for(self._rank) >= self._patience

    def end_stuck(self) -> None:
        """Kill the processes of this machine that count as lost since they are stopped or hang."""
        for rank in {*self._stopped(), *self._hanging()} & self.neighbours.keys():
            with contextlib.suppress(OSError):
                os.kill(self.neighbours[rank], signal.SIGKILL)

    def _hanging(self) -> list[int]:
        most = self._patience + _OWN_SECONDS
        ranks = range(len(self._begun_R))
        return [rank for rank in ranks if rank != self._rank and self._waited_for(rank) >= most]

    def _waited_for(self, rank: int) -> float:
        return self._looks[_BEGUN.format(rank)] * POLL_SECONDS

    def _stopped(self) -> list[int]:
        return [rank for rank in self.neighbours if self._for_long(rank)]

    def _silent(self) -> list[int]:
        """Return the first rank of a machine that is silent; the store is on that of rank 0."""
        if self.mute:
            return [0]
        return [self._next] if self._for_long("beat") else []

    def _count(self, name: str | int, still: bool) -> None:
        self._looks[name] = self._looks[name] + 1 if still else 0

    def _for_long(self, name: str | int) -> bool:
        return self._looks[name] * POLL_SECONDS >= LOST_SECONDS

    def _listen(self) -> None:
        number = 0
        try:
            while not self._over.wait(POLL_SECONDS):
                number += 1
                if number % _LOOKS_APART == 0:
                    self._exchange()
                if self._next != self._machine:
                    self._store.add(_BEAT.format(self._machine), 1)
                    self._beat = self._store.add(_BEAT.format(self._next), 0)
                self._n_answers += 1
                if self.reason is None and self._store.check([REASON]):
                    self.reason = self._store.get(REASON).decode()
                    self._store.add(TOLD, 1)
        except (RuntimeError, ValueError):  # the process that held the store has died
            self.cut_off = True

    def _exchange(self) -> None:
        self._store.set(_BEGUN.format(self._rank), f"{_collectives()} {self.n_signs}")
        keys = [_BEGUN.format(rank) for rank in range(len(self._begun_R))]
        pairs = [value.split() for value in self._store.multi_get(keys)]
        self._begun_R = [(int(begun), int(signs)) for begun, signs in pairs]


def _collectives() -> int:
    """Return the number of collectives that this process has begun; 0 where nobody counts."""
    groups: Any = list(dist.distributed_c10d._world.pg_map)
    try:
        backends = {g._get_backend(device) for g in groups for device in g._device_types}
        return sum(backend._get_sequence_number_for_group() for backend in backends)
    except (AttributeError, RuntimeError):  # not in every release and backend
        return 0


def _met(store: Any, mine: int, world: int) -> tuple[dict[int, int], list[list[int]]]:
    """Return the process ids of the other ranks on this machine, and the ranks of all machines."""
    store.set(f"guard-train/process/{mine}", f"{os.getpid()} {_machine()}")
    ids: list[int] = []
    machines: dict[str, list[int]] = {}
    for rank in range(world):
        pid, _, machine = store.get(f"guard-train/process/{rank}").decode().partition(" ")
        ids.append(int(pid))
        machines.setdefault(machine, []).append(rank)
    found = list(machines.values())
    here = next(ranks for ranks in found if mine in ranks)
    return {rank: ids[rank] for rank in here if rank != mine}, found


def _machine() -> str:
    """Return a name of this machine, or container: process ids are only known within it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _state(pid: int) -> str:
    """Return Linux's letter for the state of a process: T stopped, Z or X ended; R if unknown."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return "X"
    except OSError:  # not Linux, or another user's
        return "R"
