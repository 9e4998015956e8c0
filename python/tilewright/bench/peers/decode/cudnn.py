"""cuDNN's fused attention over KV caches: lengths by a padding mask, pages by page tables."""

from collections.abc import Callable
from typing import Any

import cudnn
import torch

from tilewright.bench.peers import Peer
from tilewright.bench.peers.cudnn_graph import DTYPES, CudnnPeer, SdpaGraph, mask


class Cudnn(CudnnPeer):
    def supports(self, case: Any) -> str | None:
        if case.dtype not in DTYPES or case.cache_dtype != case.dtype:
            return f"dtypes {case.dtype} and {case.cache_dtype}: must both be bf16 or fp16"
        if case.batch_invariant:
            return "does not say whether it is batch-invariant"
        return self.why_not_features(case, case.most_new)

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        graph = SdpaGraph(self.handle, case)
        out = inputs.new_output()
        q = graph.add("q", inputs.q, *_layout(case, inputs.q))
        k, v = (
            graph.add(name, cache, *_of_heads(cache))
            for name, cache in zip("kv", inputs.caches[0], strict=True)
        )
        options = _lengths(case, inputs, graph) | _pages(case, inputs, graph)
        if case.sinks:
            options["sink_token"] = graph.add_sinks(inputs.sinks)
        if case.most_new > 1 or case.window is not None:
            options |= mask(case, is_square=False)
        o, _ = graph.graph.sdpa(
            name="attention",
            q=q,
            k=k,
            v=v,
            generate_stats=False,
            attn_scale=case.head_dim**-0.5,
            use_padding_mask=True,
            **options,
        )
        graph.set_output(o, out, *_layout(case, out))
        if case.lengths:
            for name, tensor, buffer in (("q", q, inputs.q), ("o", o, out)):
                offsets = inputs.cu_seqlens_q.long() * buffer.stride(0)
                tensor.set_ragged_offset(graph.add_column(f"{name}_offset", offsets))
        graph.build()

        def attention(k_cache: Any, v_cache: Any) -> Any:
            graph.execute(k=k_cache, v=v_cache)
            return out

        return inputs.rotation(attention)


def _of_heads(tensor: Any) -> tuple[list[int], list[int]]:
    """Dims and strides in cuDNN's order: (batch or pages, heads, rows, head_dim)."""
    view = tensor.transpose(1, 2)
    return list(view.shape), list(view.stride())


def _layout(case: Any, tensor: Any) -> tuple[list[int], list[int]]:
    """Of q and o. Packed sequences are described as if each had the longest's place."""
    if not case.lengths:
        return _of_heads(tensor)
    _, heads, columns = tensor.shape
    token, head, column = tensor.stride()
    dim = [case.batch, heads, case.most_new, columns]
    return dim, [case.most_new * token, head, token, column]


def _lengths(case: Any, inputs: Any, graph: SdpaGraph) -> dict[str, Any]:
    q_lens = [q_len for q_len, _ in case.sequences]
    lengths = torch.tensor(q_lens, dtype=torch.int32, device=case.device)
    return {
        "seq_len_q": graph.add_column("seq_len_q", lengths),
        "seq_len_kv": graph.add_column("seq_len_kv", inputs.cache_seqlens),
    }


def _pages(case: Any, inputs: Any, graph: SdpaGraph) -> dict[str, Any]:
    """One table for K, and the same for V."""
    if inputs.block_table is None:
        return {}
    count = inputs.block_table.shape[1]
    dim, stride = [case.batch, 1, count, 1], [count, count, 1, 1]
    dtype = {"data_type": cudnn.data_type.INT32}
    tables = {
        f"paged_attention_{name}_table": graph.add(
            f"{name}_table", inputs.block_table, dim, stride, **dtype
        )
        for name in "kv"
    }
    return tables | {"paged_attention_max_seq_len_kv": count * case.page_size}


def peers(device: str) -> list[Peer]:
    return [Cudnn()] if device.startswith("cuda") else []
