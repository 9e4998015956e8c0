"""One adapter a framework: export an array, allocate an output, name the stream to work on.

Arrays are exported without synchronisation: `__dlpack__(stream=-1)`, and the kernel is queued on
the framework's current stream, where whatever wrote the array was queued before. JAX's, which has
no such stream, are waited for.
"""

import sys
from contextlib import nullcontext
from typing import Any

from tilewright import _native
from tilewright._errors import UnsupportedError, invalid, wrong_type


def stream_handle(stream: Any) -> int | None:
    """A cudaStream_t as an integer, from a framework's stream object or the integer itself."""
    if stream is None:
        return None
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    for attribute in ("cuda_stream", "ptr"):  # PyTorch's, CuPy's
        if hasattr(stream, attribute):
            return getattr(stream, attribute)
    if hasattr(stream, "__cuda_stream__"):
        return stream.__cuda_stream__()[1]
    raise wrong_type(
        "stream",
        f"is {stream!r}, must be None, a PyTorch or CuPy stream, or a cudaStream_t as an integer",
    )


class NumPy:
    """ndarrays of float32, float16 and ml_dtypes.bfloat16, on the CPU."""

    module = "numpy"

    def __init__(self, like: Any, stream: int | None):
        self.like = like
        self.stream = 0

    def export(self, array: Any) -> Any:
        return array  # the binding reads it itself; there is no stream to wait for

    def empty(self, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        """An uninitialised array of a dtype by its name, or else of the dtype of `like`."""
        numpy = sys.modules["numpy"]
        if dtype == "bfloat16":
            try:
                import ml_dtypes  # noqa: F401  # it gives NumPy the name
            except ImportError:
                message = "is 'bfloat16', which NumPy has with ml_dtypes only: pip install "
                message += "ml_dtypes, or ask for 'float16' or 'float32'"
                raise invalid("dtype", message) from None
        return numpy.empty(shape, self.like.dtype if dtype is None else dtype)

    def full(self, shape: tuple[int, ...], value: int, dtype: str) -> Any:
        """An array of one value."""
        return sys.modules["numpy"].full(shape, value, dtype)

    def deliver(self, array: Any) -> Any:
        return array


class Torch:
    """Tensors on the CPU or a CUDA device."""

    module = "torch"

    def __init__(self, like: Any, stream: int | None):
        self.torch = sys.modules["torch"]
        self.like = like
        self.on_stream = nullcontext()
        self.stream = 0
        if like.is_cuda and stream is None:
            self.stream = self.torch.cuda.current_stream(like.device).cuda_stream
        elif like.is_cuda:
            external = self.torch.cuda.ExternalStream(stream, device=like.device)
            self.on_stream = self.torch.cuda.stream(external)
            self.stream = stream

    def export(self, array: Any) -> Any:
        if array.requires_grad:  # a parameter, while no gradients are recorded
            array = array.detach()
        return array.__dlpack__(stream=-1) if array.is_cuda else array.__dlpack__()

    def empty(self, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        torch_dtype = self.like.dtype if dtype is None else getattr(self.torch, dtype)
        with self.on_stream:  # the memory is reused in this stream's order
            return self.torch.empty(shape, dtype=torch_dtype, device=self.like.device)

    def deliver(self, array: Any) -> Any:
        return array


class CuPy:
    """ndarrays on a CUDA device."""

    module = "cupy"

    def __init__(self, like: Any, stream: int | None):
        self.cupy = sys.modules["cupy"]
        self.like = like
        if stream is None:
            self.on_stream = self.cupy.cuda.get_current_stream(like.device.id)
        else:
            self.on_stream = self.cupy.cuda.ExternalStream(stream, like.device.id)
        self.stream = self.on_stream.ptr

    def export(self, array: Any) -> Any:
        return array.__dlpack__(stream=-1)

    def empty(self, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        with self.like.device, self.on_stream:
            return self.cupy.empty(shape, self.like.dtype if dtype is None else dtype)

    def full(self, shape: tuple[int, ...], value: int, dtype: str) -> Any:
        with self.like.device, self.on_stream:
            return self.cupy.full(shape, value, dtype)

    def deliver(self, array: Any) -> Any:
        return array


class Jax:
    """Arrays on the CPU or a CUDA device, outside of jit.

    JAX has no current stream: it orders its own work, and through DLPack it neither makes others'
    streams wait for that nor waits for them (0.11). So the host waits: for each array before the
    call reads or writes it, and for the call before JAX sees the result or gets memory back.
    """

    module = "jax"

    def __init__(self, like: Any, stream: int | None):
        self.jax = sys.modules["jax"]
        if stream is not None:
            raise invalid("stream", f"is {stream}, must be None: JAX orders its own work")
        self.like = like
        self.device = next(iter(like.devices()))
        self.stream = 0
        if self.device.platform == "gpu":
            self.stream = self.device.get_stream_for_external_ready_events()

    def export(self, array: Any) -> Any:
        return array.block_until_ready().__dlpack__()

    def empty(self, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        jax_dtype = self.like.dtype if dtype is None else dtype
        return self.jax.numpy.empty(shape, jax_dtype, device=self.device)

    def full(self, shape: tuple[int, ...], value: int, dtype: str) -> Any:
        return self.jax.numpy.full(shape, value, dtype, device=self.device)

    def deliver(self, array: Any) -> Any:
        if self.stream:
            _native.synchronize(self.device.local_hardware_id, self.stream)
        return array


FRAMEWORKS = {"numpy": NumPy, "torch": Torch, "cupy": CuPy, "jax": Jax, "jaxlib": Jax}


def framework_of(argument: str, array: Any) -> type:
    """The adapter class of an array's framework."""
    for base in type(array).__mro__:
        adapter = FRAMEWORKS.get(base.__module__.partition(".")[0])
        if adapter and hasattr(array, "shape") and hasattr(array, "dtype"):
            if adapter is Jax and isinstance(array, sys.modules["jax"].core.Tracer):
                message = "is traced by JAX, must be an array: call this outside of jit"
                raise wrong_type(argument, message)
            return adapter
    raise wrong_type(
        argument,
        f"is a {type(array).__module__}.{type(array).__qualname__}, must be an array of NumPy, "
        "PyTorch, CuPy or JAX",
    )


def filled_like(argument: str, like: Any, shape: tuple[int, ...], value: int, dtype: str) -> Any:
    """An array of one value, of an argument's framework and device, on the current stream."""
    adapter = framework_of(argument, like)
    if adapter is Torch:  # which may be tracing
        return like.new_full(shape, value, dtype=getattr(sys.modules["torch"], dtype))
    return adapter(like, None).full(shape, value, dtype)


def check_framework(adapter: type, argument: str, array: Any, like: str = "q") -> None:
    theirs = framework_of(argument, array)
    if theirs is not adapter:
        message = f"is an array of {theirs.module}, must be one of {adapter.module} like {like}"
        raise wrong_type(argument, message)


# The dtypes of numbers, in words; most arguments may have them.
ANY_FLOAT = "fp32, fp16 or bf16"

# Formats of one byte, which the compiled module takes as bytes, and the dtypes that hold them.
BYTE_FORMATS = {
    "e2m1x2": "float4_e2m1fn_x2",
    "e4m3": "float8_e4m3fn",
    "e8m0": "float8_e8m0fnu",
    "u8": "uint8",
}


def dtype_name(dtype: Any) -> str:
    """ "float32", of any framework's dtype, of a scalar type or of the name itself."""
    text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return text.rpartition(".")[2]


def holds_e4m3(array: Any) -> bool:
    """Whether an array's dtype is E4M3, or that of its bytes."""
    return dtype_name(getattr(array, "dtype", None)) in ("uint8", BYTE_FORMATS["e4m3"])


def to_native(
    framework: Any,
    argument: str,
    array: Any,
    is_output: bool = False,
    like: str = "q",
    byte_format: str | None = None,
    takes: str = ANY_FLOAT,
) -> _native.Tensor:
    """A caller's array as the compiled module takes it. Neither copies nor waits.

    `takes` says what dtypes the argument may have, where it has no `byte_format`.
    """
    check_framework(type(framework), argument, array, like)
    if framework.module == "torch":
        refuse_gradient(argument, array)
    held = byte_format  # the format that the array's unsigned integers hold, if any
    if byte_format is not None:
        array = _as_bytes(framework, argument, array, BYTE_FORMATS[byte_format])
    elif framework.module in ("numpy", "cupy") and array.dtype.name == "bfloat16":
        held = "bf16"  # ml_dtypes.bfloat16, which DLPack's export does not know
        array = array.view("uint16")
    try:
        source = framework.export(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise invalid(argument, f"cannot be exported through DLPack: {error}") from error
    return _native.Tensor(argument, source, held, takes, is_output)


def _as_bytes(framework: Any, argument: str, array: Any, expected: str) -> Any:
    name = dtype_name(array.dtype)
    if name == "uint8":
        return array
    if name != expected or framework.module == "jax":  # whose views are copies
        allowed = "uint8" if expected == "uint8" else f"uint8 or {expected}"
        raise invalid(argument, f"has dtype {name}, must be {allowed}")
    return array.view(framework.torch.uint8 if framework.module == "torch" else "uint8")


def new_workspace(framework: Any, workspace_bytes: int) -> _native.Tensor | None:
    """Scratch memory for a call on the framework's stream; None where it needs none.

    To be held until the call's results are delivered: where a framework orders its own work, only
    that puts the call before what next uses the memory.
    """
    if workspace_bytes == 0:
        return None
    memory = framework.empty((-(-workspace_bytes // 4),), "float32")
    return to_native(framework, "workspace", memory, is_output=True)


def refuse_immutable_out(framework: Any) -> None:
    if framework.module == "jax":
        raise invalid("out", "is given, must be None: JAX arrays are immutable")


def takes_torch_operator(
    inputs: dict[str, Any], out: Any, stream: Any, like: str = "q", out_name: str = "out"
) -> bool:
    """Whether a call must be one of PyTorch's operator, so that PyTorch sees it whole.

    That it is where something traces, watches or times PyTorch's operators, or records gradients.
    Else the compiled module is called directly, which takes less time.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(inputs[like], torch.Tensor):
        return False
    tensors = [array for array in inputs.values() if isinstance(array, torch.Tensor)]
    is_bound = _is_traced(torch) or any(_is_special(torch, tensor) for tensor in tensors)
    if not is_bound and (out is not None or stream is not None or not _is_watched(torch)):
        return False
    for argument, array in inputs.items():
        if array is not None and not isinstance(array, torch.Tensor):
            check_framework(Torch, argument, array, like)
    for argument, value in ((out_name, out), ("stream", stream)):
        if value is not None:
            message = "is given, must be None where PyTorch traces the call or records gradients"
            raise invalid(argument, message)
    return True


def framework_for(argument: str, array: Any, stream: Any) -> Any:
    """The adapter for a call that PyTorch has no operator for."""
    adapter = framework_of(argument, array)
    if adapter is Torch:
        refuse_tracing(argument, array)
    return adapter(array, stream_handle(stream))


def refuse_tracing(argument: str, tensor: Any) -> None:
    """Where a tracer would record what memory is allocated, and not the call."""
    torch = sys.modules["torch"]
    acts_by_itself = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if acts_by_itself or _is_traced(torch):
        message = (
            "is traced, or seen by a dispatch mode of PyTorch, which has no operator for this call:"
            " call it outside, or in an operator of your own (torch.library.custom_op)"
        )
        raise UnsupportedError("unsupported", argument, message)


def refuse_gradients(inputs: dict[str, Any]) -> None:
    """Where a call that records none is one of PyTorch's tensors."""
    torch = sys.modules.get("torch")
    for argument, array in inputs.items():
        if torch is not None and isinstance(array, torch.Tensor):
            refuse_gradient(argument, array)


def refuse_gradient(argument: str, tensor: Any) -> None:
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        message = (
            "requires a gradient, which would be lost: call this under torch.no_grad(), or detach()"
        )
        raise UnsupportedError("unsupported", argument, message)


def _is_traced(torch: Any) -> bool:
    """Whether calls of operators are recorded, or handed to a dispatch mode."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._ops._len_torch_dispatch_stack_pre_dispatch() > 0
    )


def _is_watched(torch: Any) -> bool:
    """Whether calls of operators are timed, or handed to a function mode."""
    return torch.autograd._profiler_enabled() or torch._C._len_torch_function_stack() > 0


def _is_special(torch: Any, tensor: Any) -> bool:
    """Fake or of another class that acts in PyTorch's place, or with a gradient to record."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return not is_plain or (tensor.requires_grad and torch.is_grad_enabled())
