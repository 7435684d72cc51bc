"""Counts what a computation would start on a GPU."""

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode


# Operations that are no views, and start no kernel: new names for memory, and memory that nothing fills.
WITHOUT_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class Kernels(TorchDispatchMode):
    """Counts operations by name, but for those that start no kernel."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation._overloadpacket.__name__
        if not (operation.is_view or name in WITHOUT_KERNEL):
            self.counts[name] += 1
        return operation(*args, **(kwargs or {}))
