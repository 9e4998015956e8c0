"""This library's kernels on FP8, each an entrant of its own and so are their variants; and, as a
measure, kernels on the same rows in BF16."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tilewright
from tilewright._kernels import find_kernel, fp8_problem_of, problem_of
from tilewright.bench.fp8_inputs import DESCALE_ROWS, Form, LseOf
from tilewright.bench.peers import Peer
from tilewright.bench.peers.attention.tilewright import TilewrightAttention, mask_and_ends
from tilewright.bench.peers.tilewright_kernel import TilewrightKernel, entrants

IN_16_BITS = ("flash", "k6")


class TilewrightFp8(TilewrightKernel):
    def _form(self, case: Any) -> Form:
        blocks = self.kernel.takes("descale_rows")
        return Form.of(case, Form(blocks, blocks, self.kernel.takes("v_transposed")))

    def problem_of(self, case: Any) -> Any:
        form = self._form(case)
        return fp8_problem_of(case.to_json(), form.transposed, DESCALE_ROWS * form.blocks)

    def setup(self, case: Any) -> dict[str, Any] | None:
        return None if case.descale else self._form(case).to_json()

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        return partial(self._attention, case, inputs)

    def lse(self, case: Any, inputs: Any) -> Any:
        lse = self._attention(case, inputs, return_lse=True)[1]
        return LseOf(lse, self._form(case))

    def _attention(self, case: Any, inputs: Any, **options: Any) -> Any:
        form = self._form(case)
        return tilewright.attention_fp8(
            **inputs.quantized(form),
            descale_rows=DESCALE_ROWS * form.blocks,
            kernel=self.kernel.name,
            **mask_and_ends(case, inputs),
            **options,
        )


class In16Bits(TilewrightAttention):
    """A measure of what FP8 gains."""

    def supports(self, case: Any) -> str | None:
        return "has no descales" if case.descale else super().supports(case)

    def problem_of(self, case: Any) -> Any:
        return problem_of(case.in_16_bits().to_json())


def peers(device: str) -> list[Peer]:
    kernels = entrants("attention_fp8", device, TilewrightFp8)
    if not device.startswith("cuda"):
        return kernels
    return [In16Bits(find_kernel(name)) for name in IN_16_BITS] + kernels
