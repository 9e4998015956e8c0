"""The race of attention over KV caches on the CPU: its cases, its inputs, its oracle, and the plain
read beside it."""

import collections
import dataclasses
import json
import math
import os
import subprocess
import sys
import types

import numpy
import pytest

from test_bench import Scripted, needs_gpu
from test_results import VALIDATOR
from tilewright.bench import __main__ as bench
from tilewright.bench import oracle
from tilewright.bench.attention import spread
from tilewright.bench.decode import BATCHES, KvCacheCase, cases
from tilewright.bench.machine import CpuMachine
from tilewright.bench.peers import PLAIN_READ
from tilewright.bench.peers.flash_attention3_decode import FlashAttention3Decode
from tilewright.bench.race import Rules, race
from tilewright.bench.report import rows
from tilewright.bench.tensors import in_float64
from tilewright.bench.timing import CpuTimer

CASE = KvCacheCase("fp32", 2, 1, 40, 4, 2, 32, 32, causal=True, device="cpu", cache_dtype="fp32")
RAGGED = {"batch": 3, "kv_lens": (40, 7, 33)}
PACKED = RAGGED | {"q_len": 9, "lengths": (1, 5, 3)}
SHARED = {"batch": 3, "page_size": 8, "shared_prefix": 16}
E4M3 = {"cache_dtype": "e4m3"}
E4M3_QUERIES = E4M3 | {"dtype": "e4m3"}
FEATURES = {
    "plain": {},
    "several new tokens": {"q_len": 6},
    "other head dims": {"head_dim": 24, "v_dim": 16, "kv_heads": 1},
    "ragged": RAGGED,
    "packed": PACKED,
    "packed, as many keys": PACKED | {"kv_lens": ()},
    "pages": {"page_size": 8},
    "pages of one": {"page_size": 1} | RAGGED,
    "packed pages": {"page_size": 16} | PACKED,
    "a window": {"window": 5, "q_len": 3},
    "a window without a mask": {"window": 5, "causal": False, "q_len": 3},
    "capped, with sinks": {"softcap": 2.0, "sinks": True},
    "batch-invariant": {"batch_invariant": True} | RAGGED,
    "a shared prefix": SHARED,
    "a shared prefix, named": SHARED | {"names_prefix": True},
    "e4m3": E4M3,
    "e4m3, a descale a head": E4M3 | {"descale": "head", "batch": 3},
    "e4m3, a descale a token": E4M3 | {"descale": "token", "page_size": 8} | RAGGED,
    "e4m3 queries": E4M3_QUERIES | PACKED,
    "e4m3 queries in pages, a descale a head": E4M3_QUERIES | {"descale": "head", "page_size": 8},
    "bf16": {"dtype": "bf16", "cache_dtype": "bf16"},
}
EACH_FEATURE = pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)

SMALL = ["decode", "--device=cpu", "--gap=0", "--samples=2", "--check", "--heads=4"]
SMALL += ["--kv-heads=2,1", "--headdim=32"]


def cpu_kernel():
    (peer,) = bench.load_kernels("decode", "cpu", "cpu")
    return peer


def lines_of(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    return lines


def test_lines_of_a_small_sweep(tmp_path):
    path = tmp_path / "race.jsonl"
    sweep = ["--batch=1,2", "--kv-seqlen=30", "--page-size=0,16", f"--json={path}"]
    assert bench.main([*SMALL, *sweep, "--peers=plain_read"]) == 0
    lines = lines_of(path)
    assert [line["impl"] for line in lines] == ["tilewright/cpu", PLAIN_READ] * 8
    assert {line["operation"] for line in lines} == {"attention_with_kvcache"}
    problems = [
        tuple(line["case"][k] for k in ("kv_heads", "batch", "page_size")) for line in lines
    ]
    assert problems[::2] == [(h, b, p) for h in (2, 1) for b in (1, 2) for p in (0, 16)]
    for ours, read in zip(lines[::2], lines[1::2], strict=True):
        assert ours["case"] == read["case"]
        assert 0 < ours["rel_fro_error"] < 1e-5 and 0 < ours["lse_error"] < 1e-5
        assert read["rel_fro_error"] is None and "lse_error" not in read
        count = ours["case"]["batch"] * (30 * ours["case"]["kv_heads"] + 4) * 64 * 4
        assert ours["gbps"] == pytest.approx(count / ours["median_us"] / 1e3, 1e-4)
    assert "kv_lens" not in lines[0]["case"] and "batch_invariant" not in lines[0]["case"]


def test_a_resumed_race_does_not_read_again(tmp_path, capsys):
    arguments = [*SMALL, "--batch=1", "--kv-seqlen=20", "--resume", f"--json={tmp_path / 'race'}"]
    for _ in range(2):
        assert bench.main([*arguments, "--peers=plain_read"]) == 0
    assert "2 of 2 cases are in" in capsys.readouterr().out


@EACH_FEATURE
def test_the_reproducing_arguments_give_the_case(options):
    case = dataclasses.replace(CASE, **options)
    args = bench.parse_arguments(case.arguments().split())
    assert list(cases(args, "cpu")) == [case]


@EACH_FEATURE
def test_flash_attention3_says_of_each_feature_whether_it_is_missing(options):
    interface = types.SimpleNamespace(
        flash_attn_func=lambda q, k, v: None,
        flash_attn_with_kvcache=lambda q, k_cache, v_cache: None,
    )
    peer = FlashAttention3Decode("fa3", "0", interface, collections.defaultdict(bool))
    assert set(dataclasses.replace(CASE, **options).features) <= set(peer.missing)


@EACH_FEATURE
def test_the_library_and_the_oracle_agree(options):
    case = dataclasses.replace(CASE, **options)
    inputs = case.make_inputs(0)
    peer = cpu_kernel()
    assert peer.supports(case) is None
    errors = case.errors(inputs, peer.prepare(case, inputs)(), peer.lse(case, inputs))
    assert 0 < errors.rel_fro < case.error_limit(inputs, is_ours=True)
    assert 0 < errors.lse < 1e-6
    assert case.label


@pytest.mark.parametrize("sequence", range(3))
@pytest.mark.parametrize("page_size", [0, 8])
def test_one_wrong_key_is_seen_in_any_sequence(sequence, page_size):
    case = dataclasses.replace(CASE, **RAGGED, page_size=page_size)
    inputs = case.make_inputs(0)
    inputs.expected  # noqa: B018  of the caches as they are
    last = inputs.kv_lens[sequence] - 1
    row, column = sequence, last
    if page_size:
        row, column = int(inputs.block_table[sequence, last // page_size]), last % page_size
    for _, v_cache in inputs.caches:
        v_cache[row, column, 1] += 10
    peer = cpu_kernel()
    assert case.errors(inputs, peer.prepare(case, inputs)()).rel_fro > 0.01


def test_a_wrong_tile_of_one_head_is_seen_in_the_longest_of_many_sequences():
    kv_lens = (65536, *[64] * 30)
    case = dataclasses.replace(CASE, batch=31, heads=32, kv_lens=kv_lens, kv_len=65536, head_dim=4)
    case = dataclasses.replace(case, v_dim=16)
    exact = numpy.random.default_rng(0).standard_normal((31, 1, 32, 16))
    exact /= numpy.sqrt(numpy.array(kv_lens))[:, None, None, None]  # as averages of values are
    expected = oracle.Expected(list(exact), [])
    found = exact.copy()
    found[0, 0, 5] += exact[0, 0, 6] * numpy.sqrt(2 * 64 / 65536)  # other keys in place of 64
    inputs = types.SimpleNamespace(expected=expected)
    assert oracle.errors(case, expected, found, None).rel_fro < 3e-4
    assert case.errors(inputs, found).rel_fro > 5e-3
    found[30, 0, 0, 0] = math.nan
    assert math.isnan(case.errors(inputs, found).rel_fro)


def test_a_repeated_case_has_the_same_inputs():
    case = dataclasses.replace(CASE, page_size=4)
    first, second, other = (case.make_inputs(seed) for seed in (0, 0, 1))
    assert (first.q == second.q).all() and not (first.q == other.q).any()
    assert (first.storages[0] == second.storages[0]).all()
    assert (first.block_table == second.block_table).all()
    assert not (first.block_table == other.block_table).all()


def test_a_shared_prefix_is_in_the_same_pages_and_counts_once_where_it_is_named():
    case = dataclasses.replace(CASE, **SHARED)
    inputs = case.make_inputs(0)
    table = numpy.asarray(inputs.block_table)
    assert (table[:, :2] == table[0, :2]).all()
    assert len(set(table[:, 2:].ravel())) == 9
    assert inputs.prefix_groups is None
    named = dataclasses.replace(case, names_prefix=True)
    assert case.kv_bytes - named.kv_bytes == 2 * 16 * 2 * 64 * 4
    inputs = named.make_inputs(0)
    assert list(inputs.prefix_groups) == [0, 3] and list(inputs.prefix_seqlens) == [16]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--names-prefix=on"], "must be off without --shared-prefix"),
        (["--shared-prefix=8"], "must be a multiple of --page-size, which is 0"),
        (["--shared-prefix=12", "--page-size=8"], "is 12, must be a multiple of --page-size"),
        (["--shared-prefix=40", "--page-size=8"], "must be at most the keys before the new .* 39"),
    ],
)
def test_prefixes_that_are_none(arguments, words):
    with pytest.raises(SystemExit, match=words):
        bench.main([*SMALL, "--batch=2", "--kv-seqlen=40", *arguments])


def test_pages_are_in_random_order():
    inputs = dataclasses.replace(CASE, **RAGGED, page_size=4).make_inputs(0)
    table = numpy.asarray(inputs.block_table)
    assert table.shape == (3, 10) and table.dtype == numpy.int32
    used = [*table[0], *table[1, :2], *table[2, :9]]
    assert sorted(used) == list(range(21)) and used != sorted(used)
    assert not table[1, 2:].any()
    assert inputs.caches[0][0].shape == (21, 4, 2, 32)


@pytest.mark.parametrize(
    ("between", "copies"), [(0, 1), (1, 2), (40960, 2), (81920, 3), (640, 2), (639, 1)]
)
def test_copies_of_a_cache(between, copies):
    case = dataclasses.replace(CASE, between_bytes=between)
    assert case.kv_bytes == 40960
    inputs = case.make_inputs(0)
    assert len(inputs.caches) == (1 if 0 < 64 * between <= case.kv_bytes else copies)
    assert len({numpy.asarray(storage).ctypes.data for storage in inputs.storages}) == len(
        inputs.caches
    )
    assert all((storage == inputs.storages[0]).all() for storage in inputs.storages)


def test_every_copy_is_read_in_turn():
    inputs = dataclasses.replace(CASE, between_bytes=81920).make_inputs(0)
    seen = []
    call = inputs.rotation(lambda k, v, **options: seen.append((k, v, options)), kernel="x")
    for _ in range(4):
        call()
    expected = [*inputs.caches, inputs.caches[0]]
    assert all(
        k is each[0] and v is each[1] for (k, v, _), each in zip(seen, expected, strict=True)
    )
    assert all(options == {"kernel": "x"} for _, _, options in seen)


def test_copies_lie_two_caches_apart(monkeypatch):
    monkeypatch.setattr("tilewright.bench.timing.l2_cache_bytes", lambda device: 50 << 20)
    args = bench.parse_arguments(["decode"])
    swept = list(cases(args, "cuda:0"))
    assert {case.between_bytes for case in swept} == {100 << 20}
    assert len(swept) == 24 and "between_bytes" not in swept[0].to_json()
    assert {(case.heads, case.kv_heads) for case in swept} == {(32, 8), (32, 1)}


@pytest.mark.parametrize(
    ("options", "keys", "pairs"),
    [
        ({}, 80, 80),
        ({"q_len": 3}, 80, 2 * (38 + 39 + 40)),
        (RAGGED, 80, 80),
        (PACKED, 80, 40 + (3 + 4 + 5 + 6 + 7) + (31 + 32 + 33)),
        ({"window": 4, "q_len": 3}, 14, 2 * 3 * 5),
        ({"page_size": 16}, 80, 80),
    ],
)
def test_work_and_bytes(options, keys, pairs):
    case = dataclasses.replace(CASE, **options)
    assert case.kv_bytes == keys * 2 * 64 * 4
    assert case.flops == 2 * 4 * 64 * pairs
    rows_of_q = (1 if case.lengths else case.batch) * case.q_len * 4
    assert case.compulsory_bytes == case.kv_bytes + rows_of_q * 64 * 4


def test_bytes_of_e4m3():
    case = dataclasses.replace(CASE, **E4M3)
    assert case.kv_bytes == 80 * 2 * 64
    assert dataclasses.replace(case, descale="token").kv_bytes == 80 * 2 * (64 + 8)
    assert case.compulsory_bytes == case.kv_bytes + 8 * (32 + 32) * 4
    of_queries = dataclasses.replace(case, **E4M3_QUERIES)
    assert of_queries.compulsory_bytes == case.kv_bytes + 8 * (32 + 32 * 2)


def test_zipf_lengths():
    (zipf,), (even,) = (
        list(cases(bench.parse_arguments(["decode", "--kv-heads=2", "--sequences", name]), "cpu"))
        for name in ("zipf128", "even128")
    )
    assert sorted(zipf.kv_lens) == sorted(spread(128, 64, 65536)) != list(zipf.kv_lens)
    assert (min(zipf.kv_lens), max(zipf.kv_lens)) == (64, 65536) and zipf.kv_len == 65536
    assert (even.kv_lens, even.batch, even.q_len) == ((), 128, 1)
    assert even.kv_bytes == pytest.approx(zipf.kv_bytes, rel=1e-4)


def test_a_mixed_batch_is_its_two_parts():
    assert BATCHES["mixed"] == BATCHES["mixed-decode"] + BATCHES["mixed-prefill"]
    names = ["mixed", "mixed-decode", "mixed-prefill"]
    args = bench.parse_arguments(["decode", "--kv-heads=8", "--heads=32", "--sequences", *names])
    mixed, decode, prefill = cases(args, "cpu")
    assert mixed.flops == decode.flops + prefill.flops
    assert mixed.compulsory_bytes == decode.compulsory_bytes + prefill.compulsory_bytes
    assert (decode.batch, decode.q_len, decode.lengths) == (60, 1, ())
    assert (prefill.batch, prefill.q_len, prefill.kv_len) == (4, 512, 8704)
    assert mixed.lengths == (1,) * 60 + (512,) * 4 and mixed.q_len == 60 + 4 * 512


@pytest.mark.parametrize("text", ["5", "2x3", "x3@4", "zipf", "1@2,"])
def test_sequences_that_are_none(text, capsys):
    with pytest.raises(SystemExit):
        bench.parse_arguments(["decode", "--sequences", text])
    assert "must be COUNTxNEW@KEYS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads=4", "--kv-heads=3"], "--kv-heads: 3 does not divide 4 heads"),
        (["--dtype=fp16", "--cache-dtype=bf16"], "--cache-dtype: is bf16, must be e4m3 or"),
    ],
)
def test_problems_that_are_none(arguments, message):
    with pytest.raises(SystemExit, match=message):
        bench.main(["decode", "--device=cpu", *arguments])


def test_the_plain_read_is_of_the_bytes_of_the_keys():
    torch = pytest.importorskip("torch")
    from tilewright.bench.peers.decode.plain_read import PlainRead

    seen = []
    case = dataclasses.replace(CASE, **RAGGED, between_bytes=81920)
    inputs = case.make_inputs(0)
    call = PlainRead("1", seen.append).prepare(case, inputs)
    for _ in inputs.storages:
        call()
    assert len(seen) == len(inputs.storages) == 3
    for words, storage in zip(seen, inputs.storages, strict=True):
        assert words.dtype == torch.int32 and words.nbytes == case.kv_bytes < storage.nbytes
        assert words.data_ptr() == storage.data_ptr()


def test_a_plain_read_is_neither_checked_nor_a_peer():
    class Read(Scripted):
        is_answer = False

    rules = Rules(samples=1, gap_s=0, max_seconds=5, check=True, seed=0)
    peers = [Read(PLAIN_READ, call=lambda inputs: None), Scripted(call=lambda inputs: inputs.q + 1)]
    read, wrong = race(peers, CASE, CpuTimer(), CpuMachine(), rules)
    assert read.timing and not read.failed and wrong.failed
    line = {"supported": True, "rel_fro_error": None, "median_us": 1.0, "gbps": 8.0}
    lines = [
        line | {"impl": impl, "tflops": tflops}
        for impl, tflops in (("tilewright/x", 1.0), (PLAIN_READ, 4.0), ("fa3", 2.0))
    ]
    assert [cells[4] for cells in rows(lines)] == ["0.500", "2.000", "1.000"]


def test_pytorch_races_on_the_cpu(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "race.jsonl"
    sizes = ["--batch=2", "--seqlen=1,3", "--kv-seqlen=30", "--page-size=0,2", f"--json={path}"]
    assert bench.main([*SMALL, *sizes, "--peers=torch_sdpa", "--kernels=none"]) == 0
    lines = lines_of(path)
    assert [line["supported"] for line in lines] == [True, False] * 4
    assert all(0 < line["rel_fro_error"] < 1e-5 for line in lines[::2])


def test_it_runs_without_pytorch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no', name='torch')")
    path = tmp_path / "race.jsonl"
    arguments = [*SMALL, "--dtype=bf16", "--cache-dtype=bf16,e4m3", "--page-size=0,8"]
    arguments += ["--sequences", "1@30,4@9", f"--json={path}"]
    result = subprocess.run(
        [sys.executable, "-m", "tilewright.bench", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = lines_of(path)
    assert [line["impl"] for line in lines] == ["tilewright/cpu"] * 8
    assert all(0 < line["rel_fro_error"] < 3e-3 for line in lines)


def test_the_dense_kernel_is_a_measure_of_chunks():
    from tilewright.bench.peers.decode.tilewright import TilewrightDense

    dense = TilewrightDense()
    case = dataclasses.replace(CASE, q_len=6)
    inputs = case.make_inputs(0)
    assert dense.supports(case) is None
    errors = case.errors(inputs, dense.prepare(case, inputs)())
    assert 0 < errors.rel_fro < 1e-6
    for options in ({"q_len": 1}, {"page_size": 8}, RAGGED, PACKED, E4M3, E4M3_QUERIES):
        assert dense.supports(dataclasses.replace(case, **options))


def test_calls_apart_are_a_measure_of_packed_batches():
    from tilewright.bench.peers.decode.tilewright import TilewrightApart

    apart = TilewrightApart()
    mixed = {"batch": 5, "lengths": (1, 1, 7, 7, 3), "q_len": 19}
    for options in (PACKED, mixed, mixed | {"page_size": 8, "sinks": True}):
        case = dataclasses.replace(CASE, **options)
        inputs = case.make_inputs(0)
        assert apart.supports(case) is None
        errors = case.errors(inputs, apart.prepare(case, inputs)())
        assert 0 < errors.rel_fro < 1e-6
    for options in ({}, RAGGED, PACKED | E4M3):
        assert apart.supports(dataclasses.replace(CASE, **options))


def test_measures_come_behind_the_kernels():
    names = [peer.name for peer in bench.load_kernels("decode", "all", "cuda:0")]
    assert names[-2:] == ["tilewright/attention", "tilewright/apart"]
    assert "tilewright/decode" in names


def test_outputs_start_as_nan():
    inputs = dataclasses.replace(CASE, **PACKED, v_dim=16).make_inputs(0)
    out = in_float64(inputs.new_output())
    assert tuple(out.shape) == (9, 4, 16) and numpy.isnan(numpy.asarray(out)).all()


@needs_gpu
@EACH_FEATURE
def test_race_on_the_gpu(tmp_path, options):
    dims = {"head_dim": 128, "v_dim": 128, "dtype": "bf16", "cache_dtype": "bf16"}
    case = dataclasses.replace(CASE, device="cuda:0", **dims | options | {"dtype": "bf16"})
    if case.head_dim != 128:
        case = dataclasses.replace(case, head_dim=192, v_dim=128)
    path = tmp_path / "race.jsonl"
    arguments = [*case.arguments().split(), "--peers=plain_read", f"--json={path}", "--check"]
    assert bench.main([*arguments, "--kernels=decode", "--samples=3", "--gap=0"]) == 0
    ours, read = lines_of(path)
    assert read["supported"] and read["cold_by"] == "rotation" and read["graph"]
    if ours["supported"]:
        assert 0 < ours["rel_fro_error"] < 3e-3 and 0 < ours["lse_error"] < 1e-5
