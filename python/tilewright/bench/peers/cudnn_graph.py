"""cuDNN's fused attention, through the graph API of nvidia-cudnn-frontend."""

from typing import Any

import cudnn
import torch

from tilewright.bench.peers import Peer

DTYPES = {"bf16": cudnn.data_type.BFLOAT16, "fp16": cudnn.data_type.HALF}
IO_DTYPES = DTYPES | {"e4m3": cudnn.data_type.FP8_E4M3}


class CudnnPeer(Peer):
    name = "cudnn"
    version = f"{cudnn.backend_version_string()}, front end {cudnn.__version__}"

    def __init__(self) -> None:
        self.handle = cudnn.create_handle()

    def why_not_features(self, case: Any, most_new: int) -> str | None:
        """`most_new` queries has the longest sequence."""
        if case.softcap:
            return "does not take softcap, but as a score modifier, which goes with no mask"
        return "does not take sinks with one query" if case.sinks and most_new == 1 else None


class SdpaGraph:
    """A graph's tensors, each with its buffer; once it is built, a plan and its workspace."""

    def __init__(self, handle: Any, case: Any):
        self.handle, self.device = handle, case.device
        self.graph = cudnn.pygraph(
            handle=handle,
            io_data_type=IO_DTYPES[case.dtype],
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
        )
        self.uids: dict[str, int] = {}
        self.buffers: dict[int, Any] = {}

    def add(self, name: str, buffer: Any, dim: list[int], stride: list[int], **dtype: Any) -> Any:
        uid = self._new_uid(name, buffer)
        return self.graph.tensor(name=name, dim=dim, stride=stride, uid=uid, **dtype)

    def add_column(self, name: str, values: Any) -> Any:
        """A vector of int32, int64 or fp32."""
        dtypes = {
            torch.int32: cudnn.data_type.INT32,
            torch.int64: cudnn.data_type.INT64,
            torch.float32: cudnn.data_type.FLOAT,
        }
        dim, stride = [len(values), 1, 1, 1], [1, 1, 1, 1]
        return self.add(name, values, dim, stride, data_type=dtypes[values.dtype])

    def add_sinks(self, sinks: Any) -> Any:
        heads = len(sinks)
        dtype = {"data_type": cudnn.data_type.FLOAT}
        return self.add("sinks", sinks, [1, heads, 1, 1], [heads, 1, 1, 1], **dtype)

    def add_number(self, name: str, value: Any) -> Any:
        """One fp32."""
        dtype = {"data_type": cudnn.data_type.FLOAT}
        return self.add(name, value, [1, 1, 1, 1], [1, 1, 1, 1], **dtype)

    def set_output(self, tensor: Any, buffer: Any, dim: list[int], stride: list[int]) -> None:
        self._set_output("o", tensor, buffer, dim, stride)

    def set_number_output(self, name: str, tensor: Any) -> None:
        """One fp32, which is of no use here."""
        number = torch.empty(1, dtype=torch.float32, device=self.device)
        output = self._set_output(name, tensor, number, [1, 1, 1, 1], [1, 1, 1, 1])
        output.set_data_type(cudnn.data_type.FLOAT)

    def _set_output(
        self, name: str, tensor: Any, buffer: Any, dim: list[int], stride: list[int]
    ) -> Any:
        uid = self._new_uid(name, buffer)
        return tensor.set_uid(uid).set_output(True).set_dim(dim).set_stride(stride)

    def _new_uid(self, name: str, buffer: Any) -> int:
        uid = self.uids[name] = len(self.uids) + 1
        self.buffers[uid] = buffer
        return uid

    def build(self) -> None:
        graph = self.graph
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        size = max(1, graph.get_workspace_size())
        self.workspace = torch.empty(size, dtype=torch.uint8, device=self.device)

    def execute(self, **buffers: Any) -> None:
        """On the current stream; with other buffers for the tensors of these names."""
        cudnn.set_stream(self.handle, torch.cuda.current_stream(self.device).cuda_stream)
        others = {self.uids[name]: buffer for name, buffer in buffers.items()}
        self.graph.execute(self.buffers | others, self.workspace, handle=self.handle)


def mask(case: Any, is_square: bool, prefix: str = "diagonal_band_") -> dict[str, Any]:
    """A band along the diagonal, which for unequal lengths ends in the bottom right. Its left bound
    counts the query's own key too. sdpa() and sdpa_fp8() have other names for the bounds."""
    left, right = case.sides
    if left is None and right is None:
        return {}
    alignment = cudnn.diagonal_alignment
    return {
        "diagonal_alignment": alignment.TOP_LEFT if is_square else alignment.BOTTOM_RIGHT,
        f"{prefix}left_bound": None if left is None else left + 1,
        f"{prefix}right_bound": right,
    }


def layout(case: Any, tensor: Any) -> tuple[list[int], list[int]]:
    """Dims and strides in cuDNN's order (batch, heads, seqlen, head_dim). Packed sequences are
    described as if each had the longest's place; offsets say where they are."""
    if case.lengths:
        longest = max(case.lengths)
        _, heads, columns = tensor.shape
        token, head, column = tensor.stride()
        return [case.batch, heads, longest, columns], [longest * token, head, token, column]
    view = tensor.transpose(1, 2)
    return list(view.shape), list(view.stride())
