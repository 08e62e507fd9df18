"""Places of the runs of a comparison: the CPU, or GPUs that each run has for itself."""

from __future__ import annotations

import os

import torch

from lab.errors import UserError

Place = tuple[str, ...]
"""Identifiers of the GPUs of one run; empty on a CPU."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
_ON_CPU = 2
"""Runs at once on a CPU."""


def find_places(
    device: str, n_parallel: int | None, gpus_per_run: int
) -> tuple[list[Place], list[str]]:
    """Return a place for each run that computes at the same time, and notices.

    Args:
        device: setting of the runs.
        n_parallel: most runs at once; if None 2 on a CPU, and as many as the GPUs have room for.
            More than these wait for a place, and a notice says so.
        gpus_per_run: GPUs of one run.

    Raises:
        UserError: a number is below 1, or there are not as many GPUs.
    """
    for name, number in (("jobs", n_parallel), ("gpus_per_run", gpus_per_run)):
        if number is not None and number < 1:
            raise UserError(f"{name} = {number}: must be at least 1")
    gpus = [] if device == "cpu" else visible_gpus()
    if gpus_per_run > max(1, len(gpus)):
        raise UserError(f"gpus_per_run = {gpus_per_run}: there are {len(gpus)} GPUs; lower it")
    if not gpus:
        return [()] * (n_parallel or _ON_CPU), []
    n_places = len(gpus) // gpus_per_run
    places = [tuple(gpus[i * gpus_per_run : (i + 1) * gpus_per_run]) for i in range(n_places)]
    if n_parallel is None or n_parallel <= n_places:
        return places[:n_parallel], []
    return places, [
        f"jobs = {n_parallel}: {len(gpus)} GPUs have room for {n_places} runs at once "
        f"(gpus_per_run = {gpus_per_run}); the others wait"
    ]


def visible_gpus() -> list[str]:
    """Return the identifiers of this process's GPUs, as `CUDA_VISIBLE_DEVICES` takes them."""
    n = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return named[:n] if named else [str(i) for i in range(n)]
