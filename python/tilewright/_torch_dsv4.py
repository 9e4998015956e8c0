"""PyTorch's operator of DeepSeek-V4's attention; tilewright.torch registers it."""

import torch
from torch import Tensor

from tilewright import _dsv4_attention
from tilewright._dsv4_attention import SCOPES

_OPTIONS = (
    "window_ring",
    "window_most_keys",
    "compressed_ring",
    "compressed_most_keys",
    "softmax_scale",
    "lse_counts_sink",
    "check_values",
    "kernel_name",
)
_RETURNS = ("normalize", "quantize", "return_lse")


@torch.library.custom_op("tilewright::dsv4_attention", mutates_args=())
def dsv4_attention(
    q: Tensor,
    window_rows: Tensor | None = None,
    window_range_end: Tensor | None = None,
    window_range_begin: Tensor | None = None,
    window_block_table: Tensor | None = None,
    window_indices: Tensor | None = None,
    window_list_lengths: Tensor | None = None,
    compressed_rows: Tensor | None = None,
    compressed_range_end: Tensor | None = None,
    compressed_range_begin: Tensor | None = None,
    compressed_block_table: Tensor | None = None,
    compressed_indices: Tensor | None = None,
    compressed_list_lengths: Tensor | None = None,
    fresh_rows: Tensor | None = None,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    window_ring: int = 0,
    window_most_keys: int = 0,
    compressed_ring: int = 0,
    compressed_most_keys: int = 0,
    softmax_scale: float | None = None,
    lse_counts_sink: bool = True,
    check_values: bool = False,
    kernel_name: str = "auto",
    normalize: bool = True,
    quantize: bool = False,
    return_lse: bool = False,
) -> list[Tensor]:
    """tilewright.dsv4_attention() with its arguments and scopes flattened.

    Returns out and what else is asked for: out_scale, and lse or row_max and row_sum.
    """
    inputs = dict(locals())
    options = {name: inputs.pop(name) for name in _OPTIONS}
    returns = {name: inputs.pop(name) for name in _RETURNS}
    named = {_with_dot(name): tensor for name, tensor in inputs.items()}
    return _dsv4_attention.run(named, options, _dsv4_attention.results_of(**returns))


def _with_dot(name: str) -> str:
    scope, _, part = name.partition("_")
    return f"{scope}.{part}" if scope in SCOPES else name


@dsv4_attention.register_fake
def _empty_results(q, *rest, normalize=True, quantize=False, return_lse=False, **options):
    """What the operator returns, without the values."""
    names = _dsv4_attention.results_of(normalize, quantize, return_lse)
    dtype = _dsv4_attention.out_dtype("torch", names)
    out = q.new_empty(q.shape, dtype=dtype and getattr(torch, dtype))
    shapes = (_dsv4_attention.result_shape(q, name) for name in names)
    return [out] + [q.new_empty(shape, dtype=torch.float32) for shape in shapes]
