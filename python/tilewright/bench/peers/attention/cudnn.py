"""cuDNN's fused attention, through the graph API of nvidia-cudnn-frontend."""

from collections.abc import Callable
from typing import Any

import cudnn
import torch

from tilewright.bench.peers import Peer

DTYPES = {"bf16": cudnn.data_type.BFLOAT16, "fp16": cudnn.data_type.HALF}


class Cudnn(Peer):
    name = "cudnn"
    version = f"{cudnn.backend_version_string()}, front end {cudnn.__version__}"

    def __init__(self) -> None:
        self.handle = cudnn.create_handle()

    def supports(self, case: Any) -> str | None:
        if case.dtype not in DTYPES:
            return f"dtype {case.dtype}: must be bf16 or fp16"
        if case.softcap:
            return "does not take softcap, but as a score modifier, which goes with no mask"
        return "does not take sinks with one query" if case.sinks and case.q_len == 1 else None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        cudnn.set_stream(self.handle, torch.cuda.current_stream(case.device).cuda_stream)
        graph = cudnn.pygraph(
            handle=self.handle,
            io_data_type=DTYPES[case.dtype],
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
        )
        out = inputs.q.new_empty((*inputs.q.shape[:-1], case.v_dim))
        buffers = {}  # by uid

        def add(name: str, buffer: Any, dim: list[int], stride: list[int], **dtype: Any) -> Any:
            uid = len(buffers) + 1
            buffers[uid] = buffer
            return graph.tensor(name=name, dim=dim, stride=stride, uid=uid, **dtype)

        q, k, v = (
            add(name, tensor, *_layout(case, tensor))
            for name, tensor in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v))
        )
        offsets, options = _packing(case, inputs, out, add)
        if case.sinks:
            dim, stride = [1, case.heads, 1, 1], [case.heads, 1, 1, 1]
            dtype = {"data_type": cudnn.data_type.FLOAT}
            options["sink_token"] = add("sinks", inputs.sinks, dim, stride, **dtype)
        for tensor, offset in zip((q, k, v), offsets, strict=False):
            tensor.set_ragged_offset(offset)
        o, _ = graph.sdpa(
            name="attention",
            q=q,
            k=k,
            v=v,
            generate_stats=False,
            attn_scale=case.head_dim**-0.5,
            **options,
            **_mask(case),
        )
        dim, stride = _layout(case, out)
        buffers[len(buffers) + 1] = out
        o.set_uid(len(buffers)).set_output(True).set_dim(dim).set_stride(stride)
        if offsets:
            o.set_ragged_offset(offsets[-1])
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        workspace = torch.empty(
            max(1, graph.get_workspace_size()), dtype=torch.uint8, device=case.device
        )

        def call() -> Any:
            graph.execute(buffers, workspace, handle=self.handle)
            return out

        return call


def _layout(case: Any, tensor: Any) -> tuple[list[int], list[int]]:
    """Dims and strides in cuDNN's order (batch, heads, seqlen, head_dim). Packed sequences are
    described as if each had the longest's place; offsets say where they are."""
    if case.lengths:
        longest = max(case.lengths)
        _, heads, columns = tensor.shape
        token, head, column = tensor.stride()
        return [case.batch, heads, longest, columns], [longest * token, head, token, column]
    view = tensor.transpose(1, 2)
    return list(view.shape), list(view.stride())


def _packing(
    case: Any, inputs: Any, out: Any, add: Callable[..., Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Of packed sequences: each one's first element in q, k, v and o, and arguments of sdpa()."""
    if not case.lengths:
        return [], {}
    ends = inputs.cu_seqlens

    def add_column(name: str, values: Any, dtype: Any) -> Any:
        return add(name, values, [len(values), 1, 1, 1], [1, 1, 1, 1], data_type=dtype)

    offsets = [
        add_column(f"{name}_offset", ends.long() * tensor.stride(0), cudnn.data_type.INT64)
        for name, tensor in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v), ("o", out))
    ]
    lengths = {
        name: add_column(name, ends.diff(), cudnn.data_type.INT32)
        for name in ("seq_len_q", "seq_len_kv")
    }
    return offsets, {"use_padding_mask": True} | lengths


def _mask(case: Any) -> dict[str, Any]:
    """A band along the diagonal, which for unequal lengths ends in the bottom right. Its left bound
    counts the query's own key too."""
    left, right = case.sides
    if left is None and right is None:
        return {}
    alignment = cudnn.diagonal_alignment
    return {
        "diagonal_alignment": alignment.TOP_LEFT
        if case.q_len == case.kv_len
        else alignment.BOTTOM_RIGHT,
        "diagonal_band_left_bound": None if left is None else left + 1,
        "diagonal_band_right_bound": right,
    }


def peers(device: str) -> list[Peer]:
    return [Cudnn()] if device.startswith("cuda") else []
