"""PyTorch's operators of DeepSeek-V4's KV rows and of RoPE; tilewright.torch registers them."""

import torch
from torch import Tensor

from tilewright import _kv_rows, _rope


@torch.library.custom_op("tilewright::quantize_kv_rows", mutates_args=("rows",))
def quantize_kv_rows(
    x: Tensor,
    rows: Tensor,
    slot_mapping: Tensor,
    *,
    check_values: bool = False,
    kernel_name: str = "auto",
) -> None:
    """tilewright.quantize_kv_rows()."""
    options = {"check_values": check_values, "kernel_name": kernel_name}
    _kv_rows.run_quantize(x, rows, slot_mapping, options)


@quantize_kv_rows.register_fake
def _nothing(x, rows, slot_mapping, **options):
    return None


@torch.library.custom_op("tilewright::dequantize_kv_rows", mutates_args=())
def dequantize_kv_rows(
    rows: Tensor,
    slot_mapping: Tensor,
    *,
    dtype: str = "bfloat16",
    check_values: bool = False,
    kernel_name: str = "auto",
) -> Tensor:
    """tilewright.dequantize_kv_rows()."""
    options = {"check_values": check_values, "kernel_name": kernel_name}
    return _kv_rows.run_dequantize(rows, slot_mapping, dtype, options)


@dequantize_kv_rows.register_fake
def _empty_vectors(rows, slot_mapping, *, dtype="bfloat16", **options):
    shape = (slot_mapping.shape[0], 512)
    return rows.new_empty(shape, dtype=getattr(torch, dtype))


@torch.library.custom_op("tilewright::rope", mutates_args=())
def rope(
    x: Tensor,
    rotary_cos: Tensor,
    rotary_sin: Tensor,
    positions: Tensor,
    *,
    interleaved: bool = True,
    rotates_last: bool = True,
    inverse: bool = False,
    check_values: bool = False,
    kernel_name: str = "auto",
) -> Tensor:
    """tilewright.rope() into a new tensor."""
    inputs = {"x": x, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "positions": positions}
    options = {
        "interleaved": interleaved,
        "rotates_last": rotates_last,
        "inverse": inverse,
        "check_values": check_values,
        "kernel_name": kernel_name,
    }
    return _rope.run(inputs, options)


@rope.register_fake
def _empty_out(x, *rest, **options):
    return x.new_empty(x.shape)
