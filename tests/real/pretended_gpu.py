"""A pretended GPU: its tensors lie in main memory, and refuse what a GPU's tensors refuse.

    python pretended_gpu.py LIBRARY CALLS OUT

trains with every settings of CALLS, a JSON list, on `cpu` and on the pretended `cuda`, and writes
the steps of both. LIBRARY is `pretended_gpu.cpp`, compiled. What is refused: operations on tensors
of both devices (but for numbers and for indices of a GPU's tensor), NumPy's view of a GPU's tensor,
its pickle. What is not seen: generators of the wrong device, kernels, streams, memory.
"""

import ctypes
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

if __name__ == "__main__":  # before PyTorch asks for the first time whether there is a GPU
    spec = find_spec("torch")
    ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(sys.argv[1])

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)
DATA = torch._C.TensorBase.data
COPIES = (aten._to_copy.default, aten.copy_.default)  # noqa: SLF001
INDEXED = (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default)
WIDENING = (aten.mm.dtype, aten.addmm.dtype, aten.addmm.dtype_out)
GIB = 2**30


def refused(*_, **__):
    raise TypeError("can't convert cuda:0 device type tensor to numpy, or pickle it")


def is_on_gpu(device):
    return device is not None and torch.device(device).type == "cuda"


class GpuTensor(Tensor):
    """A tensor that says it is on the GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001
    numpy = __array__ = __reduce_ex__ = refused

    @staticmethod
    def __new__(cls, elem):
        how = {"dtype": elem.dtype, "device": DEVICE, "strides": elem.stride()}
        how["storage_offset"] = elem.storage_offset()
        made = torch.Tensor._make_wrapper_subclass(cls, elem.size(), **how)  # noqa: SLF001
        made.elem = elem
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def _set_data(self, value):
        DATA.__set__(self, value)
        self.elem = value.elem

    data = property(lambda self: DATA.__get__(self), _set_data)

    def __deepcopy__(self, memo):
        made = GpuTensor(self.elem.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        return memo.setdefault(id(self), made)

    def tolist(self):
        return self.elem.tolist()

    def __getitem__(self, key):
        return super().__getitem__(_indices(key))

    def __setitem__(self, key, value):
        super().__setitem__(_indices(key), value)


def _indices(key):
    if isinstance(key, tuple):
        return tuple(map(_indices, key))
    return torch.tensor(key) if isinstance(key, list) else key


def run(func, args, kwargs):
    """Run an operation in main memory, unless a GPU would refuse it."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    on_gpu = [x for x in tensors if isinstance(x, GpuTensor)]
    in_memory = [x for x in tensors if not isinstance(x, GpuTensor) and x.dim()]
    assert all((x.dtype, x.shape) == (x.elem.dtype, x.elem.shape) for x in on_gpu), func
    if func in INDEXED:
        values = [x for x in (args[0], *args[2:3]) if isinstance(x, Tensor) and x.dim()]
        kinds = {isinstance(x, GpuTensor) for x in values}
        is_mixed = len(kinds) > 1 or (on_gpu and kinds == {False})
    else:
        is_mixed = on_gpu and in_memory and func not in COPIES
    if is_mixed:
        shapes = [(isinstance(x, GpuTensor), tuple(x.shape)) for x in tensors]
        raise RuntimeError(f"tensors on two devices in {func}: (is on the GPU, shape) {shapes}")
    if func is aten._fused_sdp_choice.default:  # noqa: SLF001
        return 0  # plain attention: the GPU's kernels are not there
    device = kwargs.get("device")
    ends_there = bool(on_gpu) if device is None else is_on_gpu(device)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu") if ends_there else device}
    if func is aten.copy_.default:
        ends_there = isinstance(args[0], GpuTensor)
    there = tree_map(lambda x: x.elem if isinstance(x, GpuTensor) else x, (args, kwargs))
    found = _widened(*there[0], **there[1]) if func in WIDENING else func(*there[0], **there[1])
    if not ends_there:
        return args[0] if func is aten.copy_.default else found
    found = tree_map(lambda x: GpuTensor(x) if type(x) is Tensor else x, found)
    has_aliases = bool(on_gpu) and device is None and func not in WIDENING
    return return_and_correct_aliasing(func, args, kwargs, found) if has_aliases else found


def _widened(*given, out=None, **_):
    """A product of low-precision numbers in single precision, which only a GPU has."""
    *added, left, right = (x for x in given if isinstance(x, Tensor))
    assert left.dtype == right.dtype
    product = left.float() @ right.float()
    product = product + added[0].float() if added else product
    return product if out is None else out.copy_(product)


class OnGpu(TorchDispatchMode):
    """Makes tensors on the GPU where one is asked for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_there = any(isinstance(x, GpuTensor) for x in tree_leaves((args, kwargs)))
        is_there = is_there or is_on_gpu(kwargs.get("device"))
        return run(func, args, kwargs) if is_there else func(*args, **kwargs)


class Generator(torch.Generator):
    """A generator that says where it is."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls, device="cpu")
        made.place = DEVICE if is_on_gpu(device) else torch.device(device)
        return made

    device = property(lambda self: self.place)


def install():
    """Let PyTorch have the GPU from now on."""
    _device_constructors()  # kept from now on, with the functions that are replaced here
    torch.__future__.set_swap_module_params_on_conversion(True)
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _made_there(getattr(torch, name)))
    torch.Generator = Generator
    card = SimpleNamespace(uuid="0", name="NVIDIA H100 80GB HBM3", total_memory=80 * GIB)
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "_lazy_init": None,
        "synchronize": None, "empty_cache": None, "ipc_collect": None, "set_device": None,
        "mem_get_info": (70 * GIB, 80 * GIB), "max_memory_allocated": GIB,
        "reset_peak_memory_stats": None, "get_device_name": card.name,
        "get_device_properties": card, "set_rng_state": None, "get_rng_state": torch.empty(0),
        "cudart": SimpleNamespace(cudaHostRegister=lambda *_: 0),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    OnGpu().__enter__()


def _made_there(real):
    def made(data, *args, device=None, **options):
        if not is_on_gpu(device):
            return real(data, *args, **({} if device is None else {"device": device}), **options)
        if isinstance(data, GpuTensor):
            return data.to(**options) if options else data
        return real(data, *args, **options).to(DEVICE)

    return made


def faults():
    """What is said of faults that a GPU refuses."""
    here, there = torch.ones(2), torch.ones(2, device="cuda")
    wrong = (lambda: here + there, lambda: here[there.long()], there.numpy, there.__reduce_ex__)
    said = []
    for fault in wrong:
        try:
            said.append(f"taken: {fault()}")
        except (RuntimeError, TypeError) as error:
            said.append(str(error))
    return said


def main(calls, out):
    from real import TrainConfig, train

    install()
    runs = []
    for given in json.loads(calls.read_text()):
        configs = [TrainConfig(**given, device=device) for device in ("cpu", "cuda")]
        steps = [train(config, None, progress=False).steps for config in configs]
        runs.append([table.fillna(-1).to_dict("list") for table in steps])
    out.write_text(json.dumps({"faults": faults(), "runs": runs}))


if __name__ == "__main__":
    main(Path(sys.argv[2]), Path(sys.argv[3]))
