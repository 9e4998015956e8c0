"""How the peers' libraries are called: with stand-ins for them that compute on the CPU."""

import dataclasses
import importlib
import sys
import types

import pytest

import tilewright
from tilewright.bench.attention import AttentionCase

torch = pytest.importorskip("torch")

DENSE = AttentionCase("bf16", 2, 40, 40, 4, 2, 32, 16, causal=True, device="cpu")
PACKED = AttentionCase("bf16", 3, 90, 90, 4, 2, 32, 16, True, "cpu", lengths=(50, 9, 31))
CASES = {
    "dense": DENSE,
    "full": dataclasses.replace(DENSE, causal=False),
    "packed": PACKED,
    "unequal lengths": dataclasses.replace(DENSE, q_len=11),
    "one query": dataclasses.replace(DENSE, q_len=1, causal=False),
    "a window": dataclasses.replace(DENSE, window=5),
    "a window without a mask": dataclasses.replace(DENSE, q_len=30, window=5, causal=False),
    "sinks": dataclasses.replace(DENSE, sinks=True),
    "packed, with a window and sinks": dataclasses.replace(PACKED, window=5, sinks=True),
}
EACH_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def check(peer, case):
    inputs = case.make_inputs(seed=0)
    limit = case.error_limit(inputs, is_ours=False)
    errors = case.errors(inputs, peer.prepare(case, inputs)(), peer.lse(case, inputs))
    assert errors.rel_fro < limit
    return errors


def fa3_libraries(config_name, interface_name, missing):
    """The modules of a wheel, which was built without these."""
    built = {f"FLASHATTENTION_DISABLE_HDIM{dim}": False for dim in (64, 96, 128, 192, 256)}
    parts = ("LOCAL", "SOFTCAP", "VARLEN", "FP16", "FP8", "PAGEDKV")
    built |= {f"FLASHATTENTION_DISABLE_{part}": part in missing for part in parts}
    built["FLASH_ATTENTION_DISABLE_HDIMDIFF192"] = "HDIMDIFF192" in missing
    config = types.ModuleType(config_name)
    config.CONFIG = {"build_flags": built}
    interface = types.ModuleType(interface_name)

    def dense(q, k, v, causal, window_size=(-1, -1), softcap=0.0, num_splits=1,
              return_attn_probs=False, sinks=None):  # fmt: skip
        assert num_splits == (0 if q.shape[1] < k.shape[1] else 1)
        return attention(q, k, v, causal, window_size, softcap, sinks, return_attn_probs)

    def without_sinks(q, k, v, causal, window_size=(-1, -1), softcap=0.0, num_splits=1,
                      return_attn_probs=False):  # fmt: skip
        return dense(q, k, v, causal, window_size, softcap, num_splits, return_attn_probs)

    def attention(q, k, v, causal, window_size, softcap, sinks, lse, **ends):
        if sinks is not None:
            assert sinks.dtype == torch.bfloat16
            ends["sinks"] = sinks.float()
        options = {"window_size": window_size, "softcap": softcap, "return_lse": lse}
        return tilewright.attention(q, k, v, causal=causal, **options, **ends)

    def packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal,
               window_size, softcap, return_attn_probs=False, sinks=None):  # fmt: skip
        assert max_seqlen_q == max_seqlen_k == max(cu_seqlens_q.diff())
        ends = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        return attention(q, k, v, causal, window_size, softcap, sinks, return_attn_probs, **ends)

    interface.flash_attn_func = without_sinks if "sinks" in missing else dense
    interface.flash_attn_varlen_func = packed
    return config, interface


# A config's and an interface's name, and what a wheel has not.
FA3_WHEELS = {
    "fa3": ("fa3_fwd_config", "fa3_fwd_interface", ("LOCAL", "FP16", "sinks", "PAGEDKV")),
    "fa3_tokenspeed": ("flash_attn_config", "flash_attn_interface", ("SOFTCAP", "HDIMDIFF192")),
}


@pytest.fixture(params=FA3_WHEELS)
def fa3(request, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    libraries = fa3_libraries(*FA3_WHEELS[request.param])
    for module in load(monkeypatch, f"attention.{request.param}", *libraries):
        assert module.peers("cpu") == []
        (peer,) = module.peers("cuda:0")
        assert peer.name == request.param
        yield peer


@EACH_CASE
def test_fa3(fa3, case):
    case = dataclasses.replace(case, v_dim=case.head_dim)
    reason = fa3.supports(case)
    lacks = [feature for feature in case.features if feature in ("window", "sinks")]
    assert (reason is None) == (fa3.name == "fa3_tokenspeed" or not lacks)
    if reason is None:
        assert check(fa3, case).lse < 1e-5
    else:
        assert reason == f"{lacks[0]} is not in this build"


@pytest.mark.parametrize(
    ("options", "reason", "reason_of_tokenspeed"),
    [
        ({}, None, None),
        ({"v_dim": 64}, "must be equal, or 192, 128", "must be equal in this build"),
        ({"head_dim": 192}, None, "must be equal in this build"),
        ({"head_dim": 320}, "at most 256", "at most 256"),
        ({"dtype": "fp16"}, "dtype fp16 is not in this build", None),
        ({"dtype": "fp32"}, "dtype fp32", "dtype fp32"),
        ({"softcap": 30.0}, None, "softcap is not in this build"),
    ],
)
def test_fa3_supports(fa3, options, reason, reason_of_tokenspeed):
    case = AttentionCase("bf16", 1, 8, 8, 2, 2, 128, 128, causal=False, device="cpu")
    found = fa3.supports(dataclasses.replace(case, **options))
    expected = reason if fa3.name == "fa3" else reason_of_tokenspeed
    assert found is None if expected is None else expected in found


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
        buffer = buffers[self.uid]
        return buffer.as_strided(shape, stride, buffer.storage_offset() + int(start))


class Graph:
    def __init__(self, **types):
        pass

    def __getattr__(self, name):
        return lambda *arguments: None  # validate, build, check support

    def tensor(self, **fields):
        return Tensor(**fields)

    def get_workspace_size(self):
        return 0

    def sdpa(self, q, k, v, seq_len_q=None, seq_len_kv=None, sink_token=None, **options):
        self.inputs, self.lengths, self.options = (q, k, v), (seq_len_q, seq_len_kv), options
        self.sinks = sink_token
        self.out = Tensor()
        return self.out, None

    def window(self):
        """Bottom right is where the library's window is; top left is the same for equal lengths."""
        bounds = [self.options.get(f"diagonal_band_{side}_bound") for side in ("left", "right")]
        if bounds != [None, None]:
            lengths = [tensor.dim[2] for tensor in self.inputs[:2]]
            assert self.options["diagonal_alignment"] == (lengths[0] != lengths[1])
        left, right = (-1 if bound is None else bound for bound in bounds)
        return left - 1 if left > 0 else left, right

    def execute(self, buffers, workspace, handle):
        batch = self.inputs[0].dim[0]
        lengths = [[tensor.dim[2]] * batch for tensor in self.inputs[:2]]
        if self.options.get("use_padding_mask"):
            lengths = [buffers[tensor.uid].tolist() for tensor in self.lengths]
        for sequence, (q_len, kv_len) in enumerate(zip(*lengths, strict=True)):
            q, k, v = (
                tensor.rows(buffers, sequence, n)[None].contiguous()
                for tensor, n in zip(self.inputs, (q_len, kv_len, kv_len), strict=True)
            )
            options = {"window_size": self.window(), "sinks": None}
            if self.sinks:
                assert self.sinks.dim == [1, q.shape[2], 1, 1] and self.sinks.data_type == "FLOAT"
                options["sinks"] = buffers[self.sinks.uid]
            result = tilewright.attention(q, k, v, **options)
            self.out.rows(buffers, sequence, q_len).copy_(result[0])


def cudnn_library(graph):
    library = types.ModuleType("cudnn")
    library.__version__ = "0"
    library.backend_version_string = lambda: "0"
    library.create_handle = lambda: None
    library.set_stream = lambda handle, stream: None
    library.pygraph = graph
    names = ["BFLOAT16", "HALF", "FLOAT", "INT32", "INT64", "FP8_E4M3"]
    library.data_type = types.SimpleNamespace(**dict(zip(names, names, strict=True)))
    library.heur_mode = types.SimpleNamespace(A=0, FALLBACK=1)
    library.diagonal_alignment = types.SimpleNamespace(TOP_LEFT=0, BOTTOM_RIGHT=1)
    return library


@pytest.fixture
def cudnn(monkeypatch):
    stream = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    yield from load(monkeypatch, "attention.cudnn", cudnn_library(Graph))


@EACH_CASE
def test_cudnn(cudnn, case):
    peer = cudnn.Cudnn()
    assert peer.supports(case) is None
    check(peer, case)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "fp32"}, "must be bf16 or fp16"),
        ({"softcap": 30.0}, "does not take softcap"),
        ({"sinks": True, "q_len": 1}, "does not take sinks with one query"),
    ],
)
def test_cudnn_supports(cudnn, options, reason):
    assert reason in cudnn.Cudnn().supports(dataclasses.replace(DENSE, **options))


@EACH_CASE
def test_torch_sdpa(case):
    peer = importlib.import_module("tilewright.bench.peers.attention.torch_sdpa").TorchSdpa()
    if case.features or (case.causal and case.q_len != case.kv_len):
        assert peer.supports(case) is not None
    else:
        assert peer.supports(case) is None
        check(peer, case)


def load(monkeypatch, name, *libraries):
    """The peer's module, made with these libraries, and forgotten afterwards."""
    for library in libraries:
        monkeypatch.setitem(sys.modules, library.__name__, library)
    module_names = [f"tilewright.bench.peers.{each}" for each in (name, "cudnn_graph")]
    for module_name in module_names:
        monkeypatch.delitem(sys.modules, module_name, raising=False)
    yield importlib.import_module(module_names[0])
    for module_name in module_names:
        sys.modules.pop(module_name, None)
