from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Most bytes of tensors made meanwhile that were alive at once.

    Storages of `known` tensors, which exist before, are not counted.
    """

    def __init__(self, known=()):
        super().__init__()
        self.known = {StorageWeakRef(tensor.untyped_storage()) for tensor in known}
        self.peak = 0
        self.live = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                ref = StorageWeakRef(storage)
                if ref in self.known:
                    continue
                self.live[ref] = storage.nbytes()
        self.live = {ref: size for ref, size in self.live.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self.live.values()))
        return found
