"""The compiled module; see bindings.cpp."""

from typing import Any

version: str
commit: str
nvfp4_weight_layout: int

class Tensor:
    def __init__(
        self, argument: str, source: Any, held: str | None, takes: str, is_output: bool
    ) -> None: ...

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

class AttentionProblem:
    def __init__(
        self,
        *,
        dtype: str,
        batch: int,
        q_len: int,
        kv_len: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        v_dim: int,
        causal: bool,
        packed: bool,
    ) -> None: ...

class GemmNvfp4Problem:
    def __init__(
        self,
        *,
        a_dtype: str,
        c_dtype: str,
        m: int,
        n: int,
        k: int,
        l: int,
        b_is_packed: bool,
        batch_invariant: bool,
    ) -> None: ...

class GemmBf16Problem:
    def __init__(self, *, m: int, n: int, k: int) -> None: ...

class QuantizeNvfp4Call:
    def __init__(self, tensors: dict[str, Tensor], *, swizzled: bool, decode: bool) -> None: ...
    def workspace_bytes(self) -> int: ...
    def run(self, workspace: Tensor | None, stream: int) -> None: ...

class GemmNvfp4Call:
    def __init__(
        self,
        tensors: dict[str, Tensor],
        *,
        sfa_swizzled: bool,
        sfb_swizzled: bool,
        decode_a: bool | None,
        decode_b: bool | None,
        b_is_constant: bool,
        batch_invariant: bool,
        kernel_name: str,
    ) -> None: ...
    def workspace_bytes(self) -> int: ...
    def run(self, workspace: Tensor | None, stream: int) -> None: ...

def synchronize(device_index: int, stream: int) -> None: ...
def gemm_bf16(tensors: dict[str, Tensor], *, kernel_name: str, stream: int) -> None: ...
def dequantize_nvfp4(
    tensors: dict[str, Tensor], *, swizzled: bool, decode: bool | None, stream: int
) -> None: ...
def swizzle_scales(linear: Tensor, swizzled: Tensor, stream: int) -> None: ...
def unswizzle_scales(swizzled: Tensor, linear: Tensor, stream: int) -> None: ...
def prepack_nvfp4_weight(tensors: dict[str, Tensor], *, swizzled: bool, stream: int) -> None: ...
def unpack_nvfp4_weight(tensors: dict[str, Tensor], *, swizzled: bool, stream: int) -> None: ...
def packed_nvfp4_weight_shape(rows: int, columns: int) -> list[int]: ...
def kernels() -> list[dict[str, Any]]: ...
def why_not(
    kernel: str,
    problem: AttentionProblem | GemmNvfp4Problem | GemmBf16Problem,
    *,
    device_index: int = 0,
) -> str | None: ...
def variant_of(
    kernel: str,
    problem: AttentionProblem | GemmNvfp4Problem | GemmBf16Problem,
    *,
    multiprocessors: int,
) -> str: ...
