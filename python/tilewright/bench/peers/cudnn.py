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
        return None if case.dtype in DTYPES else f"dtype {case.dtype}: must be bf16 or fp16"

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        cudnn.set_stream(self.handle, torch.cuda.current_stream(case.device).cuda_stream)
        graph = cudnn.pygraph(
            handle=self.handle,
            io_data_type=DTYPES[case.dtype],
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
        )
        out = torch.empty_like(inputs.q)
        # cuDNN's order of dimensions is (batch, heads, seqlen, head_dim); strides say the rest
        views = [tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v, out)]
        q, k, v = (
            graph.tensor(name=name, dim=list(view.shape), stride=list(view.stride()), uid=uid)
            for uid, (name, view) in enumerate(zip("qkv", views, strict=False), start=1)
        )
        o, _ = graph.sdpa(
            name="attention",
            q=q,
            k=k,
            v=v,
            generate_stats=False,
            attn_scale=case.head_dim**-0.5,
            **_mask(case),
        )
        o.set_uid(4).set_output(True).set_dim(list(views[3].shape)).set_stride(
            list(views[3].stride())
        )
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        workspace = torch.empty(
            max(1, graph.get_workspace_size()), dtype=torch.uint8, device=case.device
        )
        buffers = dict(enumerate((inputs.q, inputs.k, inputs.v, out), start=1))

        def call() -> Any:
            graph.execute(buffers, workspace, handle=self.handle)
            return out

        return call


def _mask(case: Any) -> dict[str, Any]:
    """Causal: no key beyond the diagonal, which for unequal lengths ends in the bottom right."""
    if not case.causal:
        return {}
    alignment = cudnn.diagonal_alignment
    return {
        "diagonal_alignment": alignment.TOP_LEFT
        if case.q_len == case.kv_len
        else alignment.BOTTOM_RIGHT,
        "diagonal_band_right_bound": 0,
    }


def peers(device: str) -> list[Peer]:
    return [Cudnn()] if device.startswith("cuda") else []
