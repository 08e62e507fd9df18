"""The whole simulation on PyTorch: `SimConfig.engine = "torch"`.

Only this package of the simulator imports PyTorch, and only `sim.engine.simulation` imports this
package, when the settings ask for it.

The path is one for CPU and CUDA, and tested on a CPU: against the compiled engine, on a device
without numbers for anything that would wait for a GPU, and recorded and replayed as a CUDA graph
is. What it does and costs on a GPU itself is not verified; where there is one,
`tests/sim/test_sim_torch.py` and `benchmarks/bench_sim.py --torch cuda` tell.
"""

from sim.torch_engine.device import choose_device
from sim.torch_engine.engine import TorchSimulation

__all__ = ["TorchSimulation", "choose_device"]
