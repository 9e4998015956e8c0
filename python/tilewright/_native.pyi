"""The compiled module; see bindings.cpp."""

from typing import Any

version: str
commit: str

class Tensor:
    def __init__(self, argument: str, source: Any, held: str | None, is_output: bool) -> None: ...

class AttentionCall:
    def __init__(
        self,
        tensors: dict[str, Tensor],
        *,
        softmax_scale: float | None,
        causal: bool,
        window_size_left: int,
        window_size_right: int,
        softcap: float,
        batch_invariant: bool,
        check_lengths: bool,
        kernel_name: str,
    ) -> None: ...
    def workspace_bytes(self) -> int: ...
    def run(self, workspace: Tensor | None, stream: int) -> None: ...

class QuantizeNvfp4Call:
    def __init__(self, tensors: dict[str, Tensor], *, swizzled: bool, decode: bool) -> None: ...
    def workspace_bytes(self) -> int: ...
    def run(self, workspace: Tensor | None, stream: int) -> None: ...

def dequantize_nvfp4(
    tensors: dict[str, Tensor], *, swizzled: bool, decode: bool, stream: int
) -> None: ...
def swizzle_scales(linear: Tensor, swizzled: Tensor, stream: int) -> None: ...
def unswizzle_scales(swizzled: Tensor, linear: Tensor, stream: int) -> None: ...
def kernels() -> list[dict[str, Any]]: ...
def why_not(
    kernel: str,
    *,
    device_index: int = 0,
    dtype: str | None = None,
    batch: int = 1,
    q_len: int = 1,
    kv_len: int = 1,
    heads: int = 1,
    kv_heads: int = 1,
    head_dim: int | None = None,
    value_dim: int = 0,
    causal: bool = False,
) -> str | None: ...
