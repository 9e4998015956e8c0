"""cuDNN's fused attention on FP8, through the graph API of nvidia-cudnn-frontend. On Hopper its
results are in E4M3, too, by a scale that is given to it."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tilewright.bench.fp8_inputs import PER_TENSOR, Form, Scaled
from tilewright.bench.peers import Peer
from tilewright.bench.peers.cudnn_graph import CudnnPeer, SdpaGraph, layout, mask

P_SCALE = 256.0  # the weights that it rounds are at most 1
LARGEST = 448.0


class Cudnn(CudnnPeer):
    def supports(self, case: Any) -> str | None:
        if case.descale == "block":
            return "does not take descales of blocks"
        if case.lengths or case.sinks:
            return "is raced on FP8 without packed sequences and sinks"
        return self.why_not_features(case, case.q_len)

    def setup(self, case: Any) -> dict[str, Any] | None:
        form = {} if case.descale else PER_TENSOR.to_json()
        return form | {"out_dtype": "e4m3"}

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        quantized = inputs.quantized(Form.of(case, PER_TENSOR))
        out_scale = _number(1.0, case.device)
        graph, out = self._graph(case, quantized, out_scale)
        graph.execute()  # what it gives says how large it is
        scale = _scale_of(out)
        out_scale.fill_(scale)
        result = Scaled(out, scale)

        def call() -> Any:
            graph.execute()
            return result

        return call

    def _graph(self, case: Any, quantized: dict[str, Any], out_scale: Any) -> tuple[SdpaGraph, Any]:
        """(a graph, what it writes to)"""
        graph = SdpaGraph(self.handle, case)
        q = quantized["q"]
        out = torch.empty((*q.shape[:-1], case.v_dim), dtype=q.dtype, device=q.device)
        numbers = {f"descale_{name}": quantized[f"{name}_descale"] for name in "qkv"} | {
            "scale_s": _number(P_SCALE, case.device),
            "descale_s": _number(1 / P_SCALE, case.device),
            "scale_o": out_scale,
        }
        o, _, *amax = graph.graph.sdpa_fp8(
            name="attention",
            **{
                name: graph.add(name, quantized[name], *layout(case, quantized[name]))
                for name in "qkv"
            },
            **{name: graph.add_number(name, number) for name, number in numbers.items()},
            generate_stats=False,
            attn_scale=case.head_dim**-0.5,
            **mask(case, is_square=case.q_len == case.kv_len, prefix=""),
        )
        graph.set_output(o, out, *layout(case, out))
        for name, tensor in zip(("amax_s", "amax_o"), amax, strict=True):
            graph.set_number_output(name, tensor)
        graph.build()
        return graph, out


def _number(value: float, device: str) -> Any:
    return torch.full((1,), value, dtype=torch.float32, device=device)


def _scale_of(out: Any) -> float:
    """The largest power of two by which no result, rounded as it is, becomes more than half of
    E4M3's largest number."""
    largest = out.float().abs().max().item()
    return 2.0 ** math.floor(math.log2(LARGEST / 2 / largest)) if largest else 1.0


def peers(device: str) -> list[Peer]:
    return [Cudnn()] if device.startswith("cuda") else []
