"""Forward attention."""

import operator
from typing import Any

from tilewright import _native
from tilewright._errors import invalid, wrong_type
from tilewright._frameworks import framework_of, stream_handle, to_native


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Any = None,
    scale: float | None = None,
    kernel: str | None = None,
    return_lse: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """softmax(scale * Q K^T + mask) V, exact, in one pass over the keys.

    q        (batch, q_len, heads, head_dim); fp32, fp16 or bf16. An array of NumPy, PyTorch, CuPy
             or JAX, on the CPU or a CUDA device; all arrays of a call are of one framework, device
             and dtype. The head dimension is contiguous, other strides are free.
    k, v     (batch, kv_len, kv_heads, head_dim), where kv_heads divides heads: query head h reads
             key/value head h // (heads // kv_heads)
    causal   query i sees keys up to i + kv_len - q_len (aligned to the bottom right); a query that
             sees none gives 0, and -inf in lse
    window_size
             (left, right): query i, at key i + kv_len - q_len, sees as many keys to its left and
             right; -1: all of them. Where causal too, both hold
    softcap  scaled scores s become softcap * tanh(s / softcap); 0: they stay as they are
    sinks    (heads,) fp32: a logit for each query head that enters its softmax like the score of
             one more key, whose value is 0; lse counts it
    scale    finite and at least 0; 1 / sqrt(head_dim) when None
    kernel   a name of kernels(); the fastest that can run the problem when None
    out      where to write; a new array when None. JAX arrays are immutable: None only
    stream   the CUDA stream to work on, a framework's object or a cudaStream_t as an integer; the
             framework's current one when None. CPU tensors have no use for it

    Returns out, of q's shape and dtype, or (out, lse) where return_lse: lse is fp32, (batch, heads,
    q_len), natural log. On CUDA the work is queued and the call returns at once. Raises a
    tilewright.Error that names the argument at fault; nothing is written then.
    """
    framework = framework_of("q", q)(q, stream_handle(stream))
    _check_options(causal, scale, softcap, kernel, return_lse)
    window = _window(window_size)
    if out is not None and framework.module == "jax":
        raise invalid("out", "is given, must be None: JAX arrays are immutable")

    inputs = [
        to_native(framework, name, array) for name, array in zip("qkv", (q, k, v), strict=True)
    ]
    has_lse = return_lse and len(q.shape) == 4  # any other rank is refused below
    result = framework.empty(tuple(q.shape)) if out is None else out
    lse = framework.empty((q.shape[0], q.shape[2], q.shape[1]), fp32=True) if has_lse else None
    arguments = (
        *inputs,
        to_native(framework, "out", result, is_output=True),
        to_native(framework, "lse", lse, is_output=True) if has_lse else None,
        None if sinks is None else to_native(framework, "sinks", sinks),
        causal,
        window,
        None if scale is None else float(scale),
        float(softcap),
        kernel or "auto",
    )
    workspace_bytes = _native.attention_workspace_bytes(*arguments)
    workspace = None
    if workspace_bytes:
        memory = framework.empty((-(-workspace_bytes // 4),), fp32=True)
        workspace = to_native(framework, "workspace", memory, is_output=True)
    _native.attention(*arguments, workspace, framework.stream)

    result = framework.deliver(result)
    return (result, framework.deliver(lse)) if return_lse else result


def _window(window_size: Any) -> tuple[int | None, int | None]:
    """Both sides, None where there is no limit."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        message = f"is {window_size!r}, must be a pair of integers (left, right)"
        raise wrong_type("window_size", message) from None
    if left < -1 or right < -1:
        raise invalid("window_size", f"is {window_size!r}, each must be at least 0, or -1: no limit")
    return (None if left == -1 else left, None if right == -1 else right)


def _check_options(causal: Any, scale: Any, softcap: Any, kernel: Any, return_lse: Any) -> None:
    """The Python types of what is no array."""
    for name, value in (("causal", causal), ("return_lse", return_lse)):
        if not isinstance(value, bool):
            raise wrong_type(name, f"is {value!r}, must be True or False")
    if kernel is not None and not isinstance(kernel, str):
        raise wrong_type("kernel", f"is {kernel!r}, must be a name of kernels() or None")
    for name, value, allowed in (
        ("scale", 0 if scale is None else scale, "a number or None"),
        ("softcap", softcap, "a number"),
    ):
        try:
            float(value)
        except (TypeError, ValueError):
            raise wrong_type(name, f"is {value!r}, must be {allowed}") from None
