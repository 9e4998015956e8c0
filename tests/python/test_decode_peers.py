"""How the peers of attention over KV caches are called: with stand-ins for their libraries, which
compute on the CPU."""

import dataclasses
import importlib
import importlib.util
import inspect
import pathlib
import types
import zipfile

import pytest

import tilewright
from test_decode_bench import E4M3, E4M3_QUERIES, PACKED, RAGGED
from test_peers import FA3_WHEELS, Graph, cudnn_library, fa3_libraries, load
from tilewright.bench.__main__ import parse_arguments
from tilewright.bench.decode import KvCacheCase

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[2]
CASE = KvCacheCase(
    "bf16", 2, 1, 128, 4, 2, 64, 64, causal=True, device="cpu", cache_dtype="bf16",
    between_bytes=200_000,
)  # fmt: skip
CASES = {
    "one new token": {},
    "several": {"q_len": 3},
    "several, without a mask": {"q_len": 3, "causal": False},
    "ragged": RAGGED | {"kv_len": 40},
    "packed": PACKED | {"kv_len": 40},
    "pages": {"page_size": 16},
    "packed pages": PACKED | {"kv_len": 40, "page_size": 16},
    "a window": {"window": 20, "q_len": 2},
    "sinks": {"sinks": True, "q_len": 2},
    "one new token and sinks": {"sinks": True},
    "capped": {"softcap": 30.0},
    "e4m3": E4M3,
    "e4m3 in pages, a descale a head": E4M3 | {"descale": "head", "page_size": 16},
    "e4m3 queries": E4M3_QUERIES,
}
EACH_CASE = pytest.mark.parametrize("options", CASES.values(), ids=CASES)


def check(peer, case):
    """Each copy of the cache in its turn gives the right result. Returns the LSE's error."""
    inputs = case.make_inputs(0)
    inputs.expected  # noqa: B018  of the caches as they are
    assert len(inputs.caches) > 1
    limit = case.error_limit(inputs, is_ours=False)
    call, lse = peer.prepare(case, inputs), peer.lse(case, inputs)
    for _, v_cache in inputs.caches:
        errors = case.errors(inputs, call(), lse)
        assert errors.rel_fro < limit
        v_cache.view(torch.uint8).zero_()
    assert not call().any()
    return errors.lse


def with_kvcache(missing):
    """flash_attn_with_kvcache() of a wheel that was built without these."""

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens, page_table, causal, window_size, softcap, num_splits,
        cu_seqlens_q=None, max_seqlen_q=None, q_descale=None, k_descale=None, v_descale=None,
        sinks=None, return_softmax_lse=False,
    ):  # fmt: skip
        assert num_splits == 0
        assert cu_seqlens_q is None or max_seqlen_q == max(cu_seqlens_q.diff())
        assert page_table is None or "PAGEDKV" not in missing
        if k_descale is not None:
            assert q.dtype == k_cache.dtype == torch.float8_e4m3fn
            assert k_descale.shape == v_descale.shape == (len(cache_seqlens), k_cache.shape[2])
            k_descale, v_descale = k_descale.contiguous(), v_descale.contiguous()
        if q_descale is not None:
            assert q_descale.shape == k_descale.shape
            k_descale = k_descale * q_descale
        assert sinks is None or sinks.dtype == torch.bfloat16
        return tilewright.attention_with_kvcache(
            q.bfloat16(), k_cache, v_cache, cache_seqlens, block_table=page_table, causal=causal,
            window_size=window_size, softcap=softcap, cu_seqlens_q=cu_seqlens_q,
            k_descale=k_descale, v_descale=v_descale, return_lse=return_softmax_lse,
            sinks=None if sinks is None else sinks.float(),
        )  # fmt: skip

    signature = inspect.signature(flash_attn_with_kvcache)
    there = [each for each in signature.parameters.values() if each.name not in missing]
    flash_attn_with_kvcache.__signature__ = signature.replace(parameters=there)
    return flash_attn_with_kvcache


@pytest.fixture(params=FA3_WHEELS)
def fa3(request, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config, interface = fa3_libraries(*FA3_WHEELS[request.param])
    interface.flash_attn_with_kvcache = with_kvcache(FA3_WHEELS[request.param][2])
    for module in load(monkeypatch, f"decode.{request.param}", config, interface):
        assert module.peers("cpu") == []
        (peer,) = module.peers("cuda:0")
        assert peer.name == request.param
        yield peer


@EACH_CASE
def test_fa3(fa3, options):
    case = dataclasses.replace(CASE, **options)
    lacks = {"fa3": {"window", "sinks", "page_size"}, "fa3_tokenspeed": {"softcap"}}[fa3.name]
    if lacks & set(options):
        assert fa3.supports(case).endswith("in this build")
        return
    assert fa3.supports(case) is None
    lse_error = check(fa3, case)
    is_e4m3 = case.cache_dtype == "e4m3"
    assert is_e4m3 or lse_error < 1e-5
    is_converted = is_e4m3 and case.dtype != "e4m3"
    assert fa3.setup(case) == ({"q_dtype": "e4m3"} if is_converted else None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch_invariant": True}, "depend on the rest of the batch"),
        (E4M3 | {"descale": "token"}, "row descales is not in this build"),
        ({"dtype": "fp32", "cache_dtype": "fp32"}, "dtype fp32 is not in this build"),
    ],
)
def test_fa3_supports(fa3, options, reason):
    assert reason in fa3.supports(dataclasses.replace(CASE, **options))


class CacheGraph(Graph):
    """cuDNN's graph of caches, in pages where it was given a table."""

    def sdpa(self, q, k, v, paged_attention_k_table=None, paged_attention_v_table=None, **options):
        self.tables = paged_attention_k_table, paged_attention_v_table
        self.most_keys = options.pop("paged_attention_max_seq_len_kv", None)
        assert options["use_padding_mask"] and (self.most_keys is None) == (self.tables[0] is None)
        return super().sdpa(q, k, v, **options)

    def keys(self, buffers, tensor, table, sequence, length):
        """A sequence's (length, heads, head_dim)."""
        if table is None:
            return tensor.rows(buffers, sequence, length)
        page_size = tensor.dim[2]
        assert table.dim[2] * page_size == self.most_keys
        pages = buffers[table.uid][sequence, : -(-length // page_size)]
        return torch.cat([tensor.rows(buffers, page, page_size) for page in pages])[:length]

    def execute(self, buffers, workspace, handle):
        q_lens, kv_lens = (buffers[tensor.uid].tolist() for tensor in self.lengths)
        for sequence, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
            q = self.inputs[0].rows(buffers, sequence, q_len)[None].contiguous()
            k, v = (
                self.keys(buffers, tensor, table, sequence, kv_len)[None].contiguous()
                for tensor, table in zip(self.inputs[1:], self.tables, strict=True)
            )
            sinks = buffers[self.sinks.uid] if self.sinks else None
            result = tilewright.attention(q, k, v, window_size=self.window(), sinks=sinks)
            self.out.rows(buffers, sequence, q_len).copy_(result[0])


@pytest.fixture
def cudnn(monkeypatch):
    stream = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    yield from load(monkeypatch, "decode.cudnn", cudnn_library(CacheGraph))


@EACH_CASE
def test_cudnn(cudnn, options):
    case = dataclasses.replace(CASE, **options)
    assert cudnn.peers("cpu") == []
    (peer,) = cudnn.peers("cuda:0")
    refused = {"softcap", "cache_dtype"} & set(options) or options == {"sinks": True}
    assert (peer.supports(case) is None) == (not refused)
    if not refused:
        assert check(peer, case) is None
    assert peer.supports(dataclasses.replace(case, batch_invariant=True))


class XqaModule:
    """A library of XQA for one page size and cache dtype."""

    def __init__(self, path):
        _, self.dtype, self.cache_dtype, *sizes = path.removesuffix(".so").split("/")[-1].split("_")
        self.page_size, self.group, self.head_dim = map(int, sizes)

    def xqa_wrapper(
        self, is_e4m3, multiprocessors, kv_heads, window, q_scale, _, out, out_scale, q, sinks,
        k_cache, v_cache, k_blocks, v_blocks, table, most_keys, lengths, batch, kv_scale, __, new,
        ___, mask, semaphores, scratch, early,
    ):  # fmt: skip
        assert (self.dtype, self.cache_dtype) == ("bf16", "e4m3" if is_e4m3 else "bf16")
        assert k_cache.shape[1:] == (self.page_size, kv_heads, self.head_dim)
        assert q.shape == out.shape == (batch, 1, self.group * kv_heads, self.head_dim)
        assert most_keys == table.shape[1] * self.page_size and not semaphores.any()
        assert (multiprocessors, window, out_scale, new, early) == (132, 0, 1.0, 1, True)
        assert sinks is None or sinks.shape == (kv_heads, self.group)
        options = {}
        if is_e4m3:
            options["k_descale"] = torch.tensor([q_scale * kv_scale])
            options["v_descale"] = torch.tensor([kv_scale])
        if sinks is not None:
            options["sinks"] = sinks.flatten()
        tilewright.attention_with_kvcache(
            q, k_cache, v_cache, lengths, block_table=table, out=out, **options
        )


@pytest.fixture
def xqa(monkeypatch, tmp_path):
    properties = types.SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    library = types.ModuleType("tvm_ffi")
    library.load_module = XqaModule
    (tmp_path / "version").write_text("1.2\n")
    for name in ("bf16_bf16_64_2_64", "bf16_bf16_16_2_64", "bf16_e4m3_64_2_64"):
        (tmp_path / f"xqa_{name}.so").touch()
    for module in load(monkeypatch, "decode.xqa", library):
        assert module.peers("cpu") == []
        (peer,) = module.peers("cuda:0")
        assert not peer.configure(parse_arguments(["decode"]))
        assert peer.configure(parse_arguments(["decode", f"--xqa={tmp_path}"]))
        yield peer


XQA_REASONS = {
    "several": "takes one new token",
    "several, without a mask": "takes one new token",
    "ragged": "must be a multiple of 64",
    "packed": "takes one new token",
    "packed pages": "takes one new token",
    "a window": "takes one new token",
    "sinks": "takes one new token",
    "capped": "no softcap",
    "e4m3 in pages, a descale a head": "one descale for all",
    "e4m3 queries": "xqa_e4m3_e4m3_64_2_64.so has not been built",
}


@pytest.mark.parametrize("name", CASES)
def test_xqa(xqa, name):
    case = dataclasses.replace(CASE, **CASES[name])
    assert xqa.version == "FlashInfer 1.2"
    if name in XQA_REASONS:
        assert XQA_REASONS[name] in xqa.supports(case)
    else:
        assert xqa.supports(case) is None
        check(xqa, case)
    not_built = dataclasses.replace(CASE, page_size=32)
    assert xqa.supports(not_built) == "xqa_bf16_bf16_32_2_64.so has not been built"


def test_the_libraries_of_xqa_are_those_that_race(xqa, monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("xqa_tool", ROOT / "tools/xqa.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    wheels, output = tmp_path / "wheels", tmp_path / "libraries"
    wheels.mkdir()
    for name in ("flashinfer_python-1.2-py3-none-any.whl", "apache_tvm_ffi-3-cp312-abi3.whl"):
        zipfile.ZipFile(wheels / name, "w").close()
    commands = []
    monkeypatch.setattr(tool.subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr("sys.argv", ["", f"--wheels={wheels}", f"--output={output}"])
    tool.main()
    assert len(commands) == 2 * 3 * 2
    assert xqa.configure(parse_arguments(["decode", f"--xqa={output}"]))
    wanted = {
        xqa._library(dataclasses.replace(CASE, heads=32, head_dim=128, kv_heads=kv_heads,
                                         cache_dtype=cache_dtype, page_size=page_size))
        for kv_heads in (8, 1) for cache_dtype in ("bf16", "e4m3") for page_size in (0, 16, 128)
    }  # fmt: skip
    assert {str(path) for path in wanted} == {command[-1] for command in commands}
    for command in commands:
        is_e4m3 = "_e4m3_" in command[-1]
        assert f"-DCACHE_ELEM_ENUM={2 if is_e4m3 else 0}" in command
        assert any(word.endswith("mha_sm90.cu") for word in command) == is_e4m3


@EACH_CASE
def test_torch_sdpa(options):
    module = importlib.import_module("tilewright.bench.peers.decode.torch_sdpa")
    (peer,) = module.peers("cpu")
    case = dataclasses.replace(CASE, **options)
    if set(options) <= {"q_len", "causal"}:
        assert peer.supports(case) is None
        check(peer, case)
    else:
        assert peer.supports(case)
