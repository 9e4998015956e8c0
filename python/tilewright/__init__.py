"""Tilewright: GPU kernels of LLM inference for NVIDIA Hopper, with a CPU backend.

    import tilewright
    out = tilewright.attention(q, k, v, causal=True)

Modules beside it: tilewright.flash_attn (FlashAttention-3's functions), tilewright.flash_mla
(FlashMLA's), tilewright.torch (PyTorch's operators, and a linear layer in NVFP4),
tilewright.transformers (Hugging Face models), tilewright.bench, tilewright.plot.

Names are loaded on first use, so that `tilewright.plot` runs where the compiled module is missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright._errors import (
    ArgumentTypeError,
    CudaError,
    Error,
    InvalidArgumentError,
    NoDeviceError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from tilewright._append_kv import append_kv
    from tilewright._attention import attention
    from tilewright._attention_fp8 import attention_fp8
    from tilewright._attention_with_kvcache import attention_with_kvcache
    from tilewright._dsv4_attention import Dsv4Scope, dsv4_attention
    from tilewright._gemm_bf16 import gemm_bf16
    from tilewright._gemm_nvfp4 import gemm_nvfp4
    from tilewright._kernels import Kernel, kernels
    from tilewright._kv_rows import dequantize_kv_rows, quantize_kv_rows
    from tilewright._merge_states import merge_states
    from tilewright._native import commit as __commit__
    from tilewright._native import fp8_format_version as FP8_FORMAT_VERSION
    from tilewright._native import nvfp4_weight_layout as NVFP4_WEIGHT_LAYOUT
    from tilewright._native import version as __version__
    from tilewright._nvfp4 import (
        dequantize_nvfp4,
        prepack_nvfp4_weight,
        quantize_nvfp4,
        swizzle_scales,
        unpack_nvfp4_weight,
        unswizzle_scales,
    )
    from tilewright._rope import rope, rope_tables
    from tilewright._rotate_quantize import rotate_quantize

__all__ = [
    "FP8_FORMAT_VERSION",
    "NVFP4_WEIGHT_LAYOUT",
    "ArgumentTypeError",
    "CudaError",
    "Dsv4Scope",
    "Error",
    "InvalidArgumentError",
    "Kernel",
    "NoDeviceError",
    "UnsupportedError",
    "__commit__",
    "__version__",
    "append_kv",
    "attention",
    "attention_fp8",
    "attention_with_kvcache",
    "dequantize_kv_rows",
    "dequantize_nvfp4",
    "dsv4_attention",
    "gemm_bf16",
    "gemm_nvfp4",
    "kernels",
    "merge_states",
    "prepack_nvfp4_weight",
    "quantize_kv_rows",
    "quantize_nvfp4",
    "rope",
    "rope_tables",
    "rotate_quantize",
    "swizzle_scales",
    "unpack_nvfp4_weight",
    "unswizzle_scales",
]

_LAZY = {
    "append_kv": ("tilewright._append_kv", "append_kv"),
    "attention": ("tilewright._attention", "attention"),
    "attention_fp8": ("tilewright._attention_fp8", "attention_fp8"),
    "attention_with_kvcache": ("tilewright._attention_with_kvcache", "attention_with_kvcache"),
    "Dsv4Scope": ("tilewright._dsv4_attention", "Dsv4Scope"),
    "dsv4_attention": ("tilewright._dsv4_attention", "dsv4_attention"),
    "Kernel": ("tilewright._kernels", "Kernel"),
    "kernels": ("tilewright._kernels", "kernels"),
    "gemm_bf16": ("tilewright._gemm_bf16", "gemm_bf16"),
    "gemm_nvfp4": ("tilewright._gemm_nvfp4", "gemm_nvfp4"),
    "dequantize_kv_rows": ("tilewright._kv_rows", "dequantize_kv_rows"),
    "quantize_kv_rows": ("tilewright._kv_rows", "quantize_kv_rows"),
    "merge_states": ("tilewright._merge_states", "merge_states"),
    "dequantize_nvfp4": ("tilewright._nvfp4", "dequantize_nvfp4"),
    "prepack_nvfp4_weight": ("tilewright._nvfp4", "prepack_nvfp4_weight"),
    "quantize_nvfp4": ("tilewright._nvfp4", "quantize_nvfp4"),
    "swizzle_scales": ("tilewright._nvfp4", "swizzle_scales"),
    "unpack_nvfp4_weight": ("tilewright._nvfp4", "unpack_nvfp4_weight"),
    "unswizzle_scales": ("tilewright._nvfp4", "unswizzle_scales"),
    "rope": ("tilewright._rope", "rope"),
    "rope_tables": ("tilewright._rope", "rope_tables"),
    "rotate_quantize": ("tilewright._rotate_quantize", "rotate_quantize"),
    "FP8_FORMAT_VERSION": ("tilewright._native", "fp8_format_version"),
    "NVFP4_WEIGHT_LAYOUT": ("tilewright._native", "nvfp4_weight_layout"),
    "__version__": ("tilewright._native", "version"),
    "__commit__": ("tilewright._native", "commit"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
