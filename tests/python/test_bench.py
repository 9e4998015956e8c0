"""The race on the CPU, by this library alone and beside a peer made up here."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import pytest

import tilewright
from test_results import MEASURED, UNSUPPORTED, VALIDATOR
from tilewright.bench import __main__ as bench
from tilewright.bench import peers
from tilewright.bench.attention import PACKED, AttentionCase, cases
from tilewright.bench.machine import CpuMachine
from tilewright.bench.race import Rules, order_of, race, to_line
from tilewright.bench.report import print_case
from tilewright.bench.timing import CpuTimer, Timing

SMALL = ["attention", "--device=cpu", "--tokens=96", "--seqlen=48", "--hidden=128", "--headdim=64"]
SMALL += ["--gap=0"]
CASE = AttentionCase("fp32", 1, 16, 16, 2, 2, 64, 64, causal=True, device="cpu")
RULES = Rules(samples=4, gap_s=0, max_seconds=5, check=True, seed=0)


class Scripted(peers.Peer):
    """A peer that does as it is told."""

    version = "1"

    def __init__(self, name="scripted", reason=None, call=None):
        self.name = name
        self.reason = reason
        self.call = call

    def supports(self, case):
        return self.reason

    def prepare(self, case, inputs):
        return lambda: self.call(inputs)


def run_one(peer, rules=RULES):
    (entrant,) = race([peer], CASE, CpuTimer(), CpuMachine(), rules)
    line = to_line(entrant, CASE, "2026-01-31T12:34:56Z abc", CpuTimer(), CpuMachine())
    VALIDATOR.validate(line)
    return entrant, line


def test_lines_of_a_small_sweep(tmp_path, capsys):
    path = tmp_path / "race.jsonl"
    arguments = [*SMALL, "--peers", "none", "--samples", "3", "--check", "--json", str(path)]
    assert bench.main(arguments) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["case"]["causal"] for line in lines] == [False, True]
    for line in lines:
        VALIDATOR.validate(line)
        assert line["impl"] == "tilewright/cpu"
        assert line["samples"] == 3
        assert line["p10_us"] <= line["median_us"] <= line["p90_us"]
        assert 0 < line["rel_fro_error"] < 1e-5
        assert 0 < line["lse_error"] < 1e-5
        assert (line["case"]["batch"], line["case"]["heads"]) == (2, 2)
    full = lines[0]
    assert full["tflops"] == pytest.approx(4 * 2 * 2 * 48 * 48 * 64 / full["median_us"] / 1e6, 1e-4)
    assert len({line["run"] for line in lines}) == 1
    assert re.search(r"full 2x48.*tilewright/cpu.*causal 2x48", capsys.readouterr().out, re.DOTALL)


def test_lines_of_features(tmp_path):
    path = tmp_path / "race.jsonl"
    common = ["attention", "--device=cpu", "--heads=4", "--gap=0", "--samples=2", "--check"]
    common += ["--causal=on", "--peers=none", f"--json={path}"]
    grouped = ["--headdim=24:16", "--kv-heads=4,2", "--batch=3", "--seqlen=20"]
    packed = ["--headdim=24", "--lengths", "5,40,17", "9"]
    many = ["--headdim=24", "--lengths", "4x3", "--sinks", "--softcap=20"]
    unequal = ["--headdim=24", "--seqlen=2,7", "--kv-seqlen=7,9", "--batch=1", "--window=3,6"]
    for options in ([], packed, many, unequal):
        append = ["--append"] if options else grouped
        assert bench.main([*common, *options, *append]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    lines, capped, windowed = lines[:4], lines[4], lines[5:]
    assert capped["case"]["lengths"] == [3] * 4
    assert (capped["case"]["softcap"], capped["case"]["sinks"]) == (20, True)
    assert [line["case"]["window"] for line in windowed] == [[3, None]] * 4 + [[6, None]] * 4
    sizes = [(line["case"]["q_len"], line["case"]["kv_len"]) for line in windowed]
    assert sizes == [(2, 7), (2, 9), (7, 7), (7, 9)] * 2
    cases = [line["case"] for line in lines]
    assert [(case["head_dim"], case["v_dim"]) for case in cases] == [(24, 16)] * 2 + [(24, 24)] * 2
    assert [(case["batch"], case["kv_heads"]) for case in cases] == [(3, 4), (3, 2), (3, 4), (1, 4)]
    assert [case.get("lengths") for case in cases] == [None, None, [5, 40, 17], [9]]
    assert cases[2]["q_len"] == cases[2]["kv_len"] == 62


FEATURES = {
    "plain": {},
    "grouped": {"v_dim": 32, "kv_heads": 1},
    "packed": {"lengths": (9, 7)},
    "unequal lengths": {"q_len": 5, "kv_len": 17, "batch": 2},
    "a window": {"window": 4},
    "a window without a mask": {"window": 4, "causal": False, "kv_len": 20},
    "capped": {"softcap": 1.5, "kv_heads": 1},
    "sinks": {"sinks": True, "batch": 3},
    "all": {"window": 3, "softcap": 2.0, "sinks": True, "lengths": (9, 1, 6), "v_dim": 32},
    "more queries than keys": {"q_len": 16, "kv_len": 9, "causal": True},
}


@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
def test_the_reproducing_arguments_give_the_case(options):
    case = dataclasses.replace(CASE, **options)
    if case.lengths:
        case = dataclasses.replace(case, batch=len(case.lengths))
    args = bench.parse_arguments(case.arguments().split())
    assert list(cases(args, "cpu")) == [case]


@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
def test_the_library_and_the_oracle_agree(options, monkeypatch):
    case = dataclasses.replace(CASE, **options)
    case = dataclasses.replace(case, batch=len(case.lengths) or case.batch)
    inputs = case.make_inputs(0)
    (peer,) = bench.load_kernels("attention", "cpu", "cpu")
    assert peer.supports(case) is None
    found = peer.prepare(case, inputs)(), peer.lse(case, inputs)
    errors = case.errors(inputs, *found)
    assert 0 < errors.rel_fro < 1e-6 and 0 < errors.max_abs < 1e-5 and 0 < errors.lse < 1e-6
    monkeypatch.setattr("tilewright.bench.oracle.MOST_SCORES", 7 * case.kv_len)
    in_parts = case.make_inputs(0)
    assert case.errors(in_parts, *found).rel_fro == pytest.approx(errors.rel_fro, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "pairs"),
    [
        ({}, 128),  # half of 16 x 16
        ({"causal": False}, 256),
        ({"q_len": 2}, 15 + 16),
        ({"q_len": 2, "causal": False}, 32),
        ({"window": 0}, 16),
        ({"window": 2}, 1 + 2 + 14 * 3),
        ({"window": 1, "causal": False}, 2 + 14 * 3 + 2),
        ({"window": 99}, 136),
        ({"window": 1, "lengths": (2, 3), "batch": 2}, 3 + 5),
    ],
)
def test_what_a_case_multiplies(options, pairs):
    assert dataclasses.replace(CASE, **options).flops == 2 * 2 * 128 * pairs


def test_what_a_kernel_does_not_take_has_its_reason():
    (rung,) = bench.load_kernels("attention", "k2", "cuda:0")
    assert rung.supports(dataclasses.replace(CASE, window=3)) == "does not take window"


def test_the_packed_batches_have_the_same_work():
    spread, equal = PACKED["spread"], PACKED["equal"]
    assert max(spread) == 100 * min(spread)
    assert sum(spread) == pytest.approx(sum(equal), rel=0.01)
    squares = [sum(length**2 for length in lengths) for lengths in (spread, equal)]
    assert squares[0] == pytest.approx(squares[1], rel=0.01)
    case = dataclasses.replace(CASE, batch=9, q_len=sum(equal), kv_len=sum(equal), lengths=equal)
    assert case.flops == 9 * dataclasses.replace(CASE, q_len=equal[0], kv_len=equal[0]).flops


@pytest.mark.parametrize("wrong", [0, -1])
def test_an_error_in_the_first_or_last_sequence_is_seen(wrong):
    case = dataclasses.replace(CASE, batch=3, lengths=(6, 3, 7))
    inputs = case.make_inputs(0)
    ends = {"cu_seqlens_q": inputs.cu_seqlens, "cu_seqlens_k": inputs.cu_seqlens}
    out = tilewright.attention(inputs.q, inputs.k, inputs.v, causal=True, **ends)
    assert case.errors(inputs, out).rel_fro < case.error_limit(inputs, is_ours=True)
    out[wrong] += 1
    assert case.errors(inputs, out).rel_fro > 0.1


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("head", [0, 1, 2, 3])
@pytest.mark.parametrize("tile", [0, 3])
def test_one_wrong_tile_is_seen_wherever_it_is(batch, head, tile):
    case = dataclasses.replace(CASE, batch=3, q_len=256, kv_len=256, heads=4, kv_heads=2)
    inputs = case.make_inputs(0)
    out, lse = tilewright.attention(inputs.q, inputs.k, inputs.v, causal=True, return_lse=True)
    out[batch, 64 * tile : 64 * tile + 64, head] = inputs.v[batch, 64:128, head // 2]
    errors = case.errors(inputs, out, lse)
    assert errors.rel_fro > 3e-3 > errors.lse
    lse[batch, head, 64 * tile + 63] += 1e-3
    assert case.errors(inputs, out, lse).lse > 1e-4


def test_an_lse_without_a_key_is_minus_infinity():
    case = dataclasses.replace(CASE, q_len=20)
    inputs = case.make_inputs(0)
    out, lse = tilewright.attention(inputs.q, inputs.k, inputs.v, causal=True, return_lse=True)
    assert case.errors(inputs, out, lse).lse < 1e-6
    for wrong in (0.0, float("nan"), float("inf")):
        lse[0, 1, 3] = wrong
        assert not case.errors(inputs, out, lse).lse < 1e-6


def test_several_races_in_one_process(tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    common = ["--samples=1", "--peers=none"]
    races = [*SMALL, *common, f"--json={first}", "--then", *SMALL, *common, "--causal=on"]
    assert bench.main([*races, f"--json={second}"]) == 0
    assert [len(path.read_text().splitlines()) for path in (first, second)] == [2, 1]


def test_a_failure_of_the_first_race_is_not_forgotten(monkeypatch):
    peers = iter([[Scripted("tilewright/x", call=lambda inputs: 1 / 0)], []])
    monkeypatch.setattr(bench, "load_peers", lambda *_: next(peers))
    assert bench.main([*SMALL, "--then", *SMALL]) == 1


def test_what_cannot_run_a_case_may_be_omitted(tmp_path, monkeypatch):
    path = tmp_path / "race.jsonl"
    monkeypatch.setattr(bench, "load_peers", lambda *_: [Scripted(reason="not today")])
    assert bench.main([*SMALL, f"--json={path}"]) == 0
    assert len(path.read_text().splitlines()) == 2
    assert bench.main([*SMALL, f"--json={path}", "--omit-unsupported"]) == 0
    assert path.read_text() == ""


def test_rows_of_flash_race_where_they_are_named():
    rows = bench.load_kernels("attention", "flash/*", "cuda:0")
    assert [row.name for row in rows[:2]] == ["tilewright/flash/0", "tilewright/flash/1"]
    ladder = [peer.name for peer in bench.load_kernels("attention", "all", "cuda:0")]
    assert ladder[-1] == "tilewright/flash"
    assert not {row.name for row in rows} & set(ladder)
    assert bench.load_kernels("attention", "flash/1", "cuda:0")[0].supports(
        dataclasses.replace(CASE)
    )


def test_heads_must_be_grouped_evenly():
    with pytest.raises(SystemExit, match="--kv-heads: 3 does not divide 4 heads"):
        bench.main([*SMALL, "--heads=4", "--kv-heads=3"])


def test_a_repeated_case_has_the_same_inputs():
    first, second, other = (CASE.make_inputs(seed) for seed in (0, 0, 1))
    assert (first.q == second.q).all()
    assert not (first.q == other.q).any()


def test_unsupported_is_recorded_with_its_reason():
    entrant, line = run_one(Scripted(reason="not today"))
    assert (line["supported"], line["reason"]) == (False, "not today")
    assert not entrant.failed


def test_a_peer_that_raises_does_not_stop_the_race():
    def call(inputs):
        raise MemoryError("too much")

    entrant, line = run_one(Scripted(call=call))
    assert line["reason"] == "MemoryError: too much"
    assert not entrant.failed
    ours, _ = run_one(Scripted("tilewright/x", call=call))
    assert ours.failed


def test_a_wrong_result_fails_and_is_not_timed(capsys):
    entrant, line = run_one(Scripted(call=lambda inputs: inputs.q))
    assert entrant.failed
    assert line["reason"].startswith("wrong result: relative error 2")
    assert bench.report_failures([entrant], CASE) == 1
    printed = capsys.readouterr().err
    assert "must be at most 1e-05\n" in printed
    assert "reproduce: python -m tilewright.bench attention --device cpu" in printed


def right(inputs):
    return tilewright.attention(inputs.q, inputs.k, inputs.v, causal=True)


def lse_off_by(difference, case, inputs):
    _, lse = tilewright.attention(inputs.q, inputs.k, inputs.v, causal=True, return_lse=True)
    lse[0, 1, 7] += difference
    return lse


@pytest.mark.parametrize(("name", "fails"), [("tilewright/x", True), ("fa3", False)])
def test_a_wrong_lse_fails_if_it_is_ours(name, fails, monkeypatch):
    peer = Scripted(name, call=right)
    monkeypatch.setattr(peer, "lse", partial(lse_off_by, 1e-6), raising=False)
    entrant, line = run_one(peer)
    assert not entrant.failed and 5e-7 < line["lse_error"] < 2e-6
    monkeypatch.setattr(peer, "lse", partial(lse_off_by, 1e-4))
    entrant, line = run_one(peer)
    assert entrant.failed == fails
    if fails:
        assert line["reason"].startswith("wrong LSE: error ")
    else:
        assert line["lse_error"] > 5e-5


def test_samples_are_interleaved_and_the_order_changes():
    order = []
    names = ("a", "b", "c")

    def call(name):
        return lambda inputs: order.append(name)

    rules = Rules(samples=6, gap_s=0, max_seconds=5, check=False, seed=0)
    race([Scripted(n, call=call(n)) for n in names], CASE, CpuTimer(), CpuMachine(), rules)
    assert "".join(order).endswith("c" + "acb" + "bac" + "cba" + "bca" + "cab" + "abc")


@pytest.mark.parametrize("count", range(1, 9))
def test_each_is_equally_often_behind_each_other_and_in_each_place(count):
    rounds = [order_of(index, count) for index in range(2 * count)]
    assert all(sorted(order) == list(range(count)) for order in rounds)
    places = Counter(item for order in rounds for item in enumerate(order))
    assert set(places.values()) == {2}
    pairs = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert len(pairs) == count * (count - 1)
    assert set(pairs.values()) <= {2}


@pytest.mark.parametrize("has_rich", [False, True])
def test_the_printed_table(monkeypatch, capsys, has_rich):
    if has_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    ran = MEASURED | {"tflops": 300.0, "rel_fro_error": 0.0021}
    peer = MEASURED | {"impl": "fa3", "tflops": 400.0, "median_us": 12.34}
    print_case("a title", [ran, peer, UNSUPPORTED | {"impl": "cudnn"}])
    printed = capsys.readouterr().out
    for text in ("a title", "0.750", "2.1e-03", "12.3", "cudnn: q: has head_dim 96"):
        assert text in printed


def test_a_slow_implementation_takes_fewer_samples():
    rules = Rules(samples=20, gap_s=0, max_seconds=0.01, check=False, seed=0)
    _, line = run_one(Scripted(call=lambda inputs: time.sleep(0.02)), rules)
    assert line["samples"] == 3


def test_percentiles():
    timing = Timing(samples_us=[float(x) for x in range(11)])
    assert (timing.median_us, *timing.p10_p90_us) == (5, 1, 9)
    assert Timing(samples_us=[3.0]).p10_p90_us == (3.0, 3.0)


def test_every_peer_loads_or_says_what_is_missing():
    names = {
        "attention": {"cudnn", "fa3", "fa3_tokenspeed", "torch_sdpa"},
        "decode": {"cudnn", "fa3", "fa3_tokenspeed", "plain_read", "torch_sdpa", "xqa"},
        "gemm": {"cublas", "humming"},
    }
    for command, known in names.items():
        assert set(peers.module_names(command)) == known
        for name in known:
            try:
                loaded = peers.load(command, name, "cpu")
            except ImportError as error:
                assert str(error), f"{name} does not say what is missing"
                continue
            assert all(isinstance(peer, peers.Peer) for peer in loaded)


def test_pytorch_races_on_the_cpu(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "race.jsonl"
    arguments = [*SMALL, "--peers", "torch_sdpa", "--samples", "2", "--check", "--json", str(path)]
    assert bench.main(arguments) == 0
    impls = [json.loads(line)["impl"] for line in path.read_text().splitlines()]
    assert impls == ["tilewright/cpu", "torch_sdpa"] * 2


@pytest.mark.parametrize("option", ["--kernels", "--peers"])
def test_unknown_names_are_refused(option):
    with pytest.raises(SystemExit, match=f"{option}: nobody is not one of"):
        bench.main([*SMALL, option, "nobody"])


def has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


needs_gpu = pytest.mark.skipif(not has_gpu(), reason="needs PyTorch and a CUDA device")


@needs_gpu
@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_race_on_the_gpu(tmp_path, options, dtype):
    case = dataclasses.replace(CASE, dtype=dtype, device="cuda:0", **options)
    if case.v_dim != case.head_dim:
        case = dataclasses.replace(case, head_dim=192, v_dim=128)
    path = tmp_path / "race.jsonl"
    arguments = [*case.arguments().split(), "--kernels=flash", "--peers=none", f"--json={path}"]
    assert bench.main([*arguments, "--check", "--samples=3", "--gap=0"]) == 0
    (line,) = (json.loads(line) for line in path.read_text().splitlines())
    VALIDATOR.validate(line)
    assert line["supported"], line["reason"]
    assert 0 < line["rel_fro_error"] < 3e-3 and 0 < line["lse_error"] < 1e-5
    assert list(line["case"]) == list(case.to_json())


@pytest.mark.parametrize("pattern", ["flash", "flash/*"])
def test_a_kernel_of_the_gpu_is_refused_on_the_cpu(capsys, pattern):
    with pytest.raises(SystemExit) as raised:
        bench.main([*SMALL, "--kernels", pattern])
    assert raised.value.code == 3
    assert f"error: --kernels: {pattern} needs a CUDA device: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "missing"), [("bench", "numpy"), ("bench", "ml_dtypes"), ("plot", "matplotlib")]
)
def test_a_missing_package_is_one_line_with_the_remedy(tmp_path, extra, missing):
    results = tmp_path / "attention.jsonl"
    results.write_text(json.dumps(MEASURED) + "\n")
    arguments = {
        "bench": ["gemm", "--device=cpu", "--m=1", "--samples=1"],
        "plot": ["--input", str(results), "--output-dir", str(tmp_path)],
    }
    for name in ("torch", missing):  # as if it were not there
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no', name='{name}')")
    result = subprocess.run(
        [sys.executable, "-m", f"tilewright.{extra}", *arguments[extra]],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    expected = f"error: there is no {missing}: pip install '.[{extra}]' in Tilewright's folder"
    assert result.stderr.splitlines()[-1] == expected
    assert "Traceback" not in result.stderr
