"""Tensors of the races: PyTorch's where it is there, NumPy's arrays elsewhere."""

import math
import sys
from typing import Any

ONE_IN_1000 = 3.2905267  # a normal number is beyond it or its negative so often
MOST_NORMAL = 1 << 28  # numbers at a time, which are made in fp32

LIBRARY_DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "int32": "int32",
    "int64": "int64",
}


def normal(shapes: list[tuple[int, ...]], dtype: str, device: str, seed: int) -> list[Any]:
    """Tensors of these shapes, normally distributed, the same for the same seed."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        generator = torch.Generator(device=device).manual_seed(seed)
        options = {"generator": generator, "device": device, "dtype": torch.float32}
        torch_dtype = getattr(torch, LIBRARY_DTYPES[dtype])

        def tensor(shape: tuple[int, ...]) -> Any:
            sizes = _parts(math.prod(shape))
            flat = torch.empty(sum(sizes), device=device, dtype=torch_dtype)
            for part in flat.split(sizes):
                part.copy_(torch.randn(len(part), **options))
            return flat.view(shape)

        return [tensor(shape) for shape in shapes]
    import numpy

    generator = numpy.random.default_rng(seed)
    numpy_dtype = _numpy_dtype(dtype)
    return [generator.standard_normal(shape, numpy.float32).astype(numpy_dtype) for shape in shapes]


def normal_with_outliers(
    shapes: list[tuple[int, ...]], dtype: str, device: str, seed: int
) -> list[Any]:
    """PyTorch's tensors of N(0, 1) + N(0, 100) Bernoulli(0.001), where 100 is the variance: the
    distribution of the FlashAttention-3 paper (arXiv 2407.08608, section 4.3)."""
    torch = sys.modules["torch"]
    tensors = []
    for index, shape in enumerate(shapes):
        base, outliers, choice = normal([shape] * 3, "fp32", device, seed + index)
        sums = base + torch.where(choice.abs() > ONE_IN_1000, 10 * outliers, 0)
        tensors.append(sums.to(getattr(torch, LIBRARY_DTYPES[dtype])))
    return tensors


def sample(count: int, size: int, device: str, seed: int) -> Any:
    """PyTorch's: `size` of 0, 1, ... count - 1, or all if there are no more, ascending."""
    return permutation(count, device, seed)[:size].sort().values


def _parts(count: int) -> list[int]:
    whole, rest = divmod(count, MOST_NORMAL)
    return [MOST_NORMAL] * whole + [rest]


def constant(values: list[float], dtype: str, device: str) -> Any:
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        return torch.tensor(values, dtype=getattr(torch, LIBRARY_DTYPES[dtype]), device=device)
    import numpy

    return numpy.array(values, _numpy_dtype(dtype))


def filled(shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch_dtype = getattr(torch, LIBRARY_DTYPES[dtype])
        return torch.full(shape, value, dtype=torch_dtype, device=device)
    import numpy

    return numpy.full(shape, value, _numpy_dtype(dtype))


def library_of(tensor: Any) -> Any:
    """The module whose functions take it."""
    if hasattr(tensor, "cpu"):
        return sys.modules["torch"]
    import numpy

    return numpy


def in_float64(tensor: Any) -> Any:
    """Where it is."""
    return tensor.double() if hasattr(tensor, "cpu") else tensor.astype("float64")


def indices(count: int, like: Any) -> Any:
    """0, 1, ... count - 1, where `like` is."""
    library = library_of(like)
    return library.arange(count, **({"device": like.device} if hasattr(like, "cpu") else {}))


def copy_of(tensor: Any) -> Any:
    return tensor.clone() if hasattr(tensor, "clone") else tensor.copy()


def as_integers(tensor: Any) -> Any:
    """The bits of its values: a view."""
    if hasattr(tensor, "cpu"):
        torch = sys.modules["torch"]
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
        return tensor.view(integers[tensor.element_size()])
    return tensor.view(f"uint{8 * tensor.itemsize}")


def permutation(count: int, device: str, seed: int) -> Any:
    """0, 1, ... count - 1 in random order."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        generator = torch.Generator(device=device).manual_seed(seed)
        return torch.randperm(count, generator=generator, device=device)
    import numpy

    return numpy.random.default_rng(seed).permutation(count)


def as_bytes(tensor: Any) -> Any:
    """A tensor of a dtype of one byte as integers that index others, where it is."""
    if hasattr(tensor, "cpu"):
        return tensor.view(sys.modules["torch"].uint8).int()
    return tensor.view("uint8").astype(int)


def constant_like(tensor: Any, values: list[float]) -> Any:
    """In float64, where `tensor` is."""
    xp = library_of(tensor)
    place = {"device": tensor.device} if hasattr(tensor, "cpu") else {}
    return xp.asarray(values, dtype=xp.float64, **place)


def _numpy_dtype(dtype: str) -> str:
    if dtype in ("bf16", "e4m3"):
        import ml_dtypes  # noqa: F401  (it gives NumPy the dtypes)
    return LIBRARY_DTYPES[dtype]
