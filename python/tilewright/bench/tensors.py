"""Tensors of the races: PyTorch's where it is there, NumPy's arrays elsewhere."""

import sys
from typing import Any

LIBRARY_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int32": "int32"}


def normal(shapes: list[tuple[int, ...]], dtype: str, device: str, seed: int) -> list[Any]:
    """Tensors of these shapes, normally distributed, the same for the same seed."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        generator = torch.Generator(device=device).manual_seed(seed)
        options = {"generator": generator, "device": device, "dtype": torch.float32}
        torch_dtype = getattr(torch, LIBRARY_DTYPES[dtype])
        return [torch.randn(shape, **options).to(torch_dtype) for shape in shapes]
    import numpy

    generator = numpy.random.default_rng(seed)
    numpy_dtype = _numpy_dtype(dtype)
    return [generator.standard_normal(shape, numpy.float32).astype(numpy_dtype) for shape in shapes]


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


def copy_of(tensor: Any) -> Any:
    return tensor.clone() if hasattr(tensor, "clone") else tensor.copy()


def to_float64(tensor: Any) -> Any:
    """As an array of NumPy."""
    if hasattr(tensor, "cpu"):
        return tensor.double().cpu().numpy()
    return tensor.astype("float64")


def to_bytes(tensor: Any) -> Any:
    """A tensor of a dtype of one byte, as an array of NumPy of uint8."""
    if hasattr(tensor, "cpu"):
        return tensor.view(sys.modules["torch"].uint8).cpu().numpy()
    return tensor.view("uint8")


def _numpy_dtype(dtype: str) -> str:
    if dtype == "bf16":
        import ml_dtypes  # noqa: F401  (it gives NumPy the dtype)
    return LIBRARY_DTYPES[dtype]
