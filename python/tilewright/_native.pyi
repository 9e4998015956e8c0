"""The compiled module; see bindings.cpp."""

from typing import Any

version: str
commit: str

class Tensor:
    def __init__(
        self, argument: str, source: Any, uint16_is_bf16: bool, is_output: bool
    ) -> None: ...

def attention_workspace_bytes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    sinks: Tensor | None,
    causal: bool,
    window: tuple[int | None, int | None],
    scale: float | None,
    softcap: float,
    kernel: str,
) -> int: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    sinks: Tensor | None,
    causal: bool,
    window: tuple[int | None, int | None],
    scale: float | None,
    softcap: float,
    kernel: str,
    workspace: Tensor | None,
    stream: int,
) -> None: ...
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
    causal: bool = False,
) -> str | None: ...
