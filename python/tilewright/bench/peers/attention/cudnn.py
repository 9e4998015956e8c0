"""cuDNN's fused attention, through the graph API of nvidia-cudnn-frontend."""

from collections.abc import Callable
from typing import Any

from tilewright.bench.peers import Peer
from tilewright.bench.peers.cudnn_graph import DTYPES, CudnnPeer, SdpaGraph, layout, mask


class Cudnn(CudnnPeer):
    def supports(self, case: Any) -> str | None:
        if case.dtype not in DTYPES:
            return f"dtype {case.dtype}: must be bf16 or fp16"
        return self.why_not_features(case, case.q_len)

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        graph = SdpaGraph(self.handle, case)
        out = inputs.q.new_empty((*inputs.q.shape[:-1], case.v_dim))
        q, k, v = (
            graph.add(name, tensor, *layout(case, tensor))
            for name, tensor in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v))
        )
        offsets, options = _packing(case, inputs, out, graph)
        if case.sinks:
            options["sink_token"] = graph.add_sinks(inputs.sinks)
        for tensor, offset in zip((q, k, v), offsets, strict=False):
            tensor.set_ragged_offset(offset)
        o, _ = graph.graph.sdpa(
            name="attention",
            q=q,
            k=k,
            v=v,
            generate_stats=False,
            attn_scale=case.head_dim**-0.5,
            **options,
            **mask(case, is_square=case.q_len == case.kv_len),
        )
        graph.set_output(o, out, *layout(case, out))
        if offsets:
            o.set_ragged_offset(offsets[-1])
        graph.build()

        def call() -> Any:
            graph.execute()
            return out

        return call


def _packing(
    case: Any, inputs: Any, out: Any, graph: SdpaGraph
) -> tuple[list[Any], dict[str, Any]]:
    """Of packed sequences: each one's first element in q, k, v and o, and arguments of sdpa()."""
    if not case.lengths:
        return [], {}
    ends = inputs.cu_seqlens
    offsets = [
        graph.add_column(f"{name}_offset", ends.long() * tensor.stride(0))
        for name, tensor in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v), ("o", out))
    ]
    lengths = {name: graph.add_column(name, ends.diff()) for name in ("seq_len_q", "seq_len_kv")}
    return offsets, {"use_padding_mask": True} | lengths


def peers(device: str) -> list[Peer]:
    return [Cudnn()] if device.startswith("cuda") else []
