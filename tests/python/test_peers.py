"""How the peers' libraries are called: with stand-ins for them that compute on the CPU."""

import importlib
import sys
import types

import pytest

import tilewright
from tilewright.bench.attention import AttentionCase

torch = pytest.importorskip("torch")

DENSE = AttentionCase("bf16", 2, 40, 40, 4, 2, 32, 16, causal=True, device="cpu")
PACKED = AttentionCase("bf16", 3, 90, 90, 4, 2, 32, 16, True, "cpu", lengths=(50, 9, 31))
CASES = pytest.mark.parametrize("case", [DENSE, PACKED], ids=["dense", "packed"])


def check(peer, case):
    inputs = case.make_inputs(seed=0)
    limit = case.error_limit(inputs, is_ours=False)
    assert case.errors(inputs, peer.prepare(case, inputs)())[0] < limit


@pytest.fixture
def fa3(monkeypatch):
    config = types.ModuleType("fa3_fwd_config")
    config.CONFIG = {"build_flags": {"FLASHATTENTION_DISABLE_FP16": True}}
    interface = types.ModuleType("fa3_fwd_interface")
    interface.flash_attn_func = lambda q, k, v, causal: tilewright.attention(q, k, v, causal=causal)

    def packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal):
        assert max_seqlen_q == max_seqlen_k == max(cu_seqlens_q.diff())
        ends = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        return tilewright.attention(q, k, v, causal=causal, **ends)

    interface.flash_attn_varlen_func = packed
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    yield from load(monkeypatch, "attention.fa3", config, interface)


@CASES
def test_fa3(fa3, case):
    check(fa3.FlashAttention3(), case)


@pytest.mark.parametrize(
    ("dtype", "head_dims", "reason"),
    [
        ("bf16", (128, 128), None),
        ("bf16", (192, 128), None),
        ("fp16", (128, 128), "dtype fp16 is not in this build"),
        ("bf16", (128, 64), "must be equal, or 192, 128"),
        ("bf16", (320, 320), "at most 256"),
    ],
)
def test_fa3_supports(fa3, dtype, head_dims, reason):
    case = AttentionCase(dtype, 1, 8, 8, 2, 2, *head_dims, causal=False, device="cpu")
    found = fa3.FlashAttention3().supports(case)
    assert found is None if reason is None else reason in found


class Tensor:
    """A tensor of cuDNN's graph."""

    def __init__(self, **fields):
        self.__dict__ |= {"offset": None} | fields

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda value: self.__dict__.update({name.removeprefix("set_"): value}) or self

    def rows(self, buffers, sequence, length):
        """A sequence's (length, heads, head_dim), in the buffer that was given for this tensor."""
        offset = self.__dict__.get("ragged_offset")
        start = buffers[offset.uid][sequence] if offset else sequence * self.stride[0]
        _, heads, _, columns = self.dim
        head, token, column = self.stride[1:]
        shape, stride = (length, heads, columns), (token, head, column)
        return buffers[self.uid].as_strided(shape, stride, int(start))


class Graph:
    def __init__(self, **types):
        pass

    def __getattr__(self, name):
        return lambda *arguments: None  # validate, build, check support

    def tensor(self, **fields):
        return Tensor(**fields)

    def get_workspace_size(self):
        return 0

    def sdpa(self, q, k, v, seq_len_q=None, seq_len_kv=None, **options):
        self.inputs, self.lengths, self.options = (q, k, v), (seq_len_q, seq_len_kv), options
        self.out = Tensor()
        return self.out, None

    def execute(self, buffers, workspace, handle):
        batch, _, length, _ = self.inputs[0].dim
        lengths = [[length] * batch] * 2
        if self.options.get("use_padding_mask"):
            lengths = [buffers[tensor.uid].tolist() for tensor in self.lengths]
        for sequence, (q_len, kv_len) in enumerate(zip(*lengths, strict=True)):
            q, k, v = (
                tensor.rows(buffers, sequence, n)[None].contiguous()
                for tensor, n in zip(self.inputs, (q_len, kv_len, kv_len), strict=True)
            )
            causal = self.options.get("diagonal_band_right_bound") == 0
            result = tilewright.attention(q, k, v, causal=causal)
            self.out.rows(buffers, sequence, q_len).copy_(result[0])


@pytest.fixture
def cudnn(monkeypatch):
    library = types.ModuleType("cudnn")
    library.__version__ = "0"
    library.backend_version_string = lambda: "0"
    library.create_handle = lambda: None
    library.set_stream = lambda handle, stream: None
    library.pygraph = Graph
    names = ["BFLOAT16", "HALF", "FLOAT", "INT32", "INT64"]
    library.data_type = types.SimpleNamespace(**dict(zip(names, names, strict=True)))
    library.heur_mode = types.SimpleNamespace(A=0, FALLBACK=1)
    library.diagonal_alignment = types.SimpleNamespace(TOP_LEFT=0, BOTTOM_RIGHT=1)
    stream = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    yield from load(monkeypatch, "attention.cudnn", library)


@CASES
def test_cudnn(cudnn, case):
    check(cudnn.Cudnn(), case)


def load(monkeypatch, name, *libraries):
    """The peer's module, made with these libraries, and forgotten afterwards."""
    for library in libraries:
        monkeypatch.setitem(sys.modules, library.__name__, library)
    module_name = f"tilewright.bench.peers.{name}"
    monkeypatch.delitem(sys.modules, module_name, raising=False)
    yield importlib.import_module(module_name)
    sys.modules.pop(module_name)
