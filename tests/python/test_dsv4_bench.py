"""The race of DeepSeek-V4's attention on the CPU: its cases, its inputs, its oracle; and how the
peer is called, with a stand-in for its library, which computes on the CPU."""

import dataclasses
import json
import types

import pytest

torch = pytest.importorskip("torch")

from test_peers import load
from test_results import VALIDATOR
from tilewright import flash_mla
from tilewright.bench import __main__ as bench
from tilewright.bench.dsv4 import Dsv4Case, cases
from tilewright.bench.peers import PLAIN_READ

CASE = Dsv4Case("fp32", 2, 1, 8, 16, 20, device="cpu", context=100, between_bytes=200_000)
RANGE = {"compressed_keys": "range", "context": 20}
FEATURES = {
    "plain": {},
    "several new tokens": {"q_len": 3},
    "a range": RANGE,
    "a range for several tokens": RANGE | {"q_len": 2},
    "no window": {"window": 0},
    "no compressed keys": {"compressed": 0, "context": 100},
    "no sinks": {"sinks": False},
    "inverse rope": {"inverse_rope": True, "q_len": 2},
    "bf16 rows": {"window_rows": "bf16", "compressed_rows": "bf16"},
    "rows of V4.1": {"window_rows": "e4m3", "compressed_rows": "e2m1"},
    "small pages": {"window_page_size": 16, "compressed_page_size": 2},
    "bf16": {"dtype": "bf16"},
}
EACH_FEATURE = pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
SMALL = ["dsv4", "--device=cpu", "--gap=0", "--samples=2", "--check", "--batch=1,2"]


def cpu_kernel():
    (peer,) = bench.load_kernels("dsv4", "cpu", "cpu")
    return peer


def check(peer, case):
    """Each copy of the caches in its turn gives the right result."""
    inputs = case.make_inputs(0)
    inputs.expected  # noqa: B018  of the caches as they are
    assert len(inputs.caches) > 1
    call, lse = peer.prepare(case, inputs), peer.lse(case, inputs)
    for storage in inputs.storages:
        errors = case.errors(inputs, call(), lse)
        assert 0 < errors.rel_fro < case.error_limit(inputs, peer.is_ours)
        storage.zero_()
    assert not call().any()
    return errors


def test_lines_of_a_small_sweep(tmp_path):
    path = tmp_path / "race.jsonl"
    sweep = ["--keys", "16+20", "0+33", "--rows=e4m3_bf16,e2m1", f"--json={path}"]
    assert bench.main([*SMALL, *sweep, "--peers=plain_read"]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    assert [line["impl"] for line in lines] == ["tilewright/cpu", PLAIN_READ] * 8
    assert {line["operation"] for line in lines} == {"dsv4_attention"}
    assert [line["case"]["window"] for line in lines[::2]] == [16] * 4 + [0] * 4
    for ours in lines[::2]:
        assert 0 < ours["rel_fro_error"] < 1e-5 and 0 < ours["lse_error"] < 1e-5
    one = lines[0]
    count = 36 * 584 + 2 * 8 * 512 * 4
    assert one["gbps"] == pytest.approx(count / one["median_us"] / 1e3, 1e-4)
    assert one["tflops"] == pytest.approx(4 * 8 * 512 * 36 / one["median_us"] / 1e6, 1e-4)


@EACH_FEATURE
def test_the_reproducing_arguments_give_the_case(options):
    case = dataclasses.replace(CASE, **options, between_bytes=0)
    args = bench.parse_arguments(case.arguments().split())
    assert list(cases(args, "cpu")) == [case]


@EACH_FEATURE
def test_the_library_and_the_oracle_agree(options):
    case = dataclasses.replace(CASE, **options)
    peer = cpu_kernel()
    assert peer.supports(case) is None and case.label
    assert check(peer, case).lse < 1e-6


def test_one_wrong_key_is_seen():
    inputs = CASE.make_inputs(0)
    inputs.expected  # noqa: B018
    last = int(inputs.indices[1, 0, -1])
    for _, rows in inputs.caches:
        page, row = divmod(last, CASE.compressed_page_size)
        rows[page].view(-1)[row * 576 : row * 576 + 448] ^= 0x80
    assert CASE.errors(inputs, cpu_kernel().prepare(CASE, inputs)()).rel_fro > 0.01


# ---- FlashMLA


class Library(types.ModuleType):
    """FlashMLA, which has kernels for 64 and 128 heads of BF16."""

    def __init__(self):
        super().__init__("flash_mla")
        self.get_mla_metadata = flash_mla.get_mla_metadata
        self.metadata = []

    def flash_mla_with_kvcache(self, q, k_cache, *rest, **options):
        assert q.dtype == torch.bfloat16 and q.shape[2] in (64, 128) and q.is_contiguous()
        assert k_cache.dtype == torch.float8_e4m3fn and k_cache.shape[2:] == (1, 584)
        assert k_cache.stride(0) % 576 == 0
        self.metadata.append(options["tile_scheduler_metadata"])
        return flash_mla.flash_mla_with_kvcache(q, k_cache, *rest, **options)


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    library = Library()
    for module in load(monkeypatch, "dsv4.flash_mla", library):
        assert module.peers("cpu") == []
        (library.peer,) = module.peers("cuda:0")
        yield library


@pytest.mark.parametrize("heads", [8, 64, 100])
@EACH_FEATURE
def test_flash_mla(library, options, heads):
    case = dataclasses.replace(CASE, **({"dtype": "bf16", "heads": heads} | options))
    refused = {"inverse_rope", "window_rows"} & set(options) or case.window == 0
    assert (library.peer.supports(case) is None) == (not refused)
    if not refused:
        check(library.peer, case)
        assert len({id(each) for each in library.metadata}) == 1
        padded = {8: {"heads": 64}, 64: None, 100: {"heads": 128}}[heads]
        assert library.peer.setup(case) == padded


def test_flash_mla_takes_no_fp32(library):
    assert "BF16" in library.peer.supports(CASE)
