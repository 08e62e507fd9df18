"""The CPU as a platform of verl: one rank is one logical GPU of Ray, which asks for no device."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _Device(types.ModuleType):
    """torch.cpu, with the functions of memory and streams that verl asks every device for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _nothing(*_: Any, **__: Any) -> None:
    pass


device = _Device("verl_cpu.device")
for _name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
    setattr(device, _name, lambda *_, **__: 0)
for _name in ("empty_cache", "reset_peak_memory_stats", "set_device", "synchronize", "ipc_collect"):
    setattr(device, _name, _nothing)
device.mem_get_info = lambda *_: (1 << 34, 1 << 34)
device.get_device_name = lambda *_: "CPU"
device.get_rng_state, device.set_rng_state = torch.get_rng_state, torch.set_rng_state
device.is_available = lambda: True
device.current_device = lambda: "cpu"


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Takes "cpu" wherever torch takes an index."""

    device_name = vendor_name = "cpu"
    device_module = device

    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: "cpu")
    device_count = staticmethod(lambda: 1)
    set_device = set_allocator_settings = synchronize = empty_cache = staticmethod(_nothing)
    profiler_start = profiler_stop = staticmethod(_nothing)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_device_capability = staticmethod(lambda *_: (None, None))
    communication_backend_name = staticmethod(lambda: "gloo")
    visible_devices_envvar = staticmethod(lambda: "VERL_CPU_VISIBLE_DEVICES")
    nvtx_range = staticmethod(lambda _: contextlib.nullcontext())
    # verl counts GPU and NPU alone; Ray is told of some.
    ray_resource_name = staticmethod(lambda: "GPU")
    ray_noset_envvars = staticmethod(lambda: [])
    is_ipc_supported = staticmethod(lambda: False)
    cudart = staticmethod(_nothing)
