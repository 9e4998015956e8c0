"""FlashAttention-3 on FP8: E4M3 queries, keys and values, a descale for each sequence and key/value
head, BF16 results."""

from typing import Any

from tilewright.bench.fp8_inputs import PER_TENSOR, Form, LseOf
from tilewright.bench.peers.flash_attention3 import FlashAttention3


class FlashAttention3Fp8(FlashAttention3):
    def supports(self, case: Any) -> str | None:
        if case.descale == "block":
            return "does not take descales of blocks"
        return super().supports(case)

    def takes(self, dtype: str) -> bool:
        return dtype == "e4m3" and not self._lacks("FP8")

    def setup(self, case: Any) -> dict[str, Any] | None:
        return None if case.descale else PER_TENSOR.to_json()

    def lse(self, case: Any, inputs: Any) -> Any:
        return LseOf(super().lse(case, inputs), Form.of(case, PER_TENSOR))

    def tensors(self, case: Any, inputs: Any) -> tuple[Any, Any, Any]:
        quantized = inputs.quantized(Form.of(case, PER_TENSOR))
        return tuple(quantized[name] for name in "qkv")

    def options(self, case: Any, inputs: Any) -> dict[str, Any]:
        """A tensor's descale is that of all its heads."""
        quantized = inputs.quantized(Form.of(case, PER_TENSOR))
        names = ("q_descale", "k_descale", "v_descale")
        shape = (case.batch, case.kv_heads)
        descales = {name: quantized[name].expand(shape) for name in names}
        return super().options(case, inputs) | descales
