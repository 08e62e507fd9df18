"""Where the tensors are, how an epoch's kernels are launched, and how its rows come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lab.errors import UserError

Columns = dict[str, Tensor]


def choose_device(name: str) -> torch.device:
    """The device that the setting names; `auto` is a GPU where there is one.

    Raises:
        UserError: CUDA is asked for, and PyTorch sees none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device = cuda: PyTorch finds no CUDA device; use device = cpu, or install a CUDA "
            "build of PyTorch"
        )
    return torch.device(name)


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on the device."""
    return torch.from_numpy(np.array(array)).to(device)


class Replay:
    """Records the kernels of a function and replays them: a CUDA graph.

    The function takes all that changes from call to call from tensors that stay in their places,
    and returns the same tensors every time, overwritten. The first call runs it as it is, for what
    libraries set up at their first use must not be recorded.
    """

    def __init__(self, work: Callable[[], Columns]) -> None:
        """Take the function; nothing is run yet."""
        self._work = work
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Columns:
        """Run, record or replay the function."""
        if not self._warm:
            self._warm = True
            return self._on_side_stream()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._columns = self._work()
        self._graph.replay()
        return self._columns

    def _on_side_stream(self) -> Columns:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            columns = self._work()
        torch.cuda.current_stream().wait_stream(side)
        return columns


class Landing:
    """Where an epoch's columns land on the host.

    On a GPU this is page-locked memory that the next epoch's columns will overwrite: copy what is
    kept.
    """

    def __init__(self, device: torch.device) -> None:
        """Land columns of this device."""
        self._device = device
        self._pages: Columns = {}

    def fetch(self, columns: Columns) -> dict[str, NDArray[Any]]:
        """Wait for the columns; the only time in an epoch that the host waits for the device."""
        if self._device.type == "cpu":
            return {name: column.numpy() for name, column in columns.items()}
        for name, column in columns.items():
            if name not in self._pages:
                self._pages[name] = torch.empty_like(column, device="cpu", pin_memory=True)
            self._pages[name].copy_(column, non_blocking=True)
        torch.cuda.synchronize(self._device)
        return {name: self._pages[name].numpy() for name in columns}
