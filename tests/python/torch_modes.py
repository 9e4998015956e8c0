"""A dispatch mode that notes which operators it sees."""

from torch.utils._python_dispatch import TorchDispatchMode


class SeenByDispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.operators.append(operator)
        return operator(*args, **(kwargs or {}))
