"""The race of GEMMs on the CPU: its cases, its oracle, weights that rotate, and the
commands that need a GPU as far as they go without one."""

import dataclasses
import json
from functools import partial

import numpy
import pytest

import tilewright
from test_bench import Scripted, needs_gpu
from test_results import VALIDATOR
from tilewright.bench import __main__ as bench
from tilewright.bench import gemm_oracle
from tilewright.bench.gemm import GemmCase, cases
from tilewright.bench.machine import CpuMachine
from tilewright.bench.race import Rules, race, warm_up
from tilewright.bench.tensors import in_float64
from tilewright.bench.timing import CpuTimer, Rotation, copies_to_rotate

SMALL = ["gemm", "--device=cpu", "--shapes", "48x64", "32x128", "--m=1,5", "--gap=0"]
SMALL += ["--samples=2", "--peers=none", "--check"]
CASE = GemmCase(m=3, n=32, k=64, dtype="bf16", w4a4=False, batch_invariant=False, device="cpu")

dequantize = partial(tilewright.dequantize_nvfp4, global_scale_kind="encode")


def is_right(inputs, output):
    return CASE.errors(inputs, output).rel_fro <= CASE.error_limit(inputs, is_ours=True)


def to_float64(tensor):
    """As an array of NumPy."""
    return numpy.asarray(in_float64(tensor))


@pytest.mark.parametrize(
    "options", [[], ["--dtype=fp16"], ["--w4a4"], ["--batch-invariant=on"], ["--rmsnorm"]]
)
def test_lines_of_a_small_sweep(tmp_path, options):
    if "--rmsnorm" in options:
        pytest.importorskip("torch")
    path = tmp_path / "race.jsonl"
    assert bench.main([*SMALL, *options, f"--json={path}"]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    shapes = [(line["case"]["n"], line["case"]["k"], line["case"]["m"]) for line in lines]
    assert shapes == [(48, 64, 1), (48, 64, 5), (32, 128, 1), (32, 128, 5)]
    for line in lines:
        VALIDATOR.validate(line)
        assert (line["operation"], line["impl"]) == ("gemm_nvfp4", "tilewright/cpu")
        assert (line["cold_l2"], line["cold_by"]) == (False, None)
        assert 0 < line["rel_fro_error"] < 2e-3
    case = lines[0]["case"]
    assert case["out_dtype"] == ("fp16" if "--dtype=fp16" in options else "bf16")
    assert case["a_dtype"] == ("nvfp4" if "--w4a4" in options else case["out_dtype"])
    assert case.get("batch_invariant", False) == ("--batch-invariant=on" in options)
    assert case.get("rmsnorm", False) == ("--rmsnorm" in options)


@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": "fp16", "w4a4": True}, {"batch_invariant": True, "m": 7}, {"rmsnorm": True}],
)
def test_the_reproducing_arguments_give_the_case(options):
    case = dataclasses.replace(CASE, **options)
    if case.rmsnorm:
        pytest.importorskip("torch")
    args = bench.parse_arguments(case.arguments().split())
    assert list(cases(args, "cpu")) == [case]


def test_the_default_sweep():
    args = bench.parse_arguments(["gemm", "--no-rotate-weights"])
    sweep = list(cases(args, "cuda:0"))
    assert len(sweep) == 28
    assert (sweep[0].n, sweep[0].k, sweep[0].m) == (7168, 16384, 1)
    assert (args.samples, args.gap, args.timed) == (25, 0.02, "series")
    assert bench.parse_arguments(["attention"]).samples == 20


def test_batch_invariant_gemms_beside_others():
    args = bench.parse_arguments(["gemm", "--m=1,2", "--shapes=64x32", "--batch-invariant=both"])
    found = [(case.m, case.batch_invariant) for case in cases(args, "cpu")]
    assert found == [(1, False), (2, False), (1, True), (2, True)]


def test_an_rmsnorm_gives_16_bits():
    pytest.importorskip("torch")
    args = bench.parse_arguments(["gemm", "--rmsnorm", "--w4a4"])
    with pytest.raises(SystemExit, match="--rmsnorm gives activations in 16 bits"):
        list(cases(args, "cpu"))


def test_an_rmsnorm_is_launched_before_each_gemm(monkeypatch):
    torch = pytest.importorskip("torch")
    inputs = dataclasses.replace(CASE, rmsnorm=True, between_bytes=3000).make_inputs(0)
    norm = inputs.unnormed_a.double()
    norm /= (norm**2).mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(inputs.a.double(), norm, rtol=2e-2, atol=1e-2)
    log, rms_norm = [], torch.nn.functional.rms_norm

    def normalize(*arguments):
        log.append("norm")
        return rms_norm(*arguments)

    monkeypatch.setattr(torch.nn.functional, "rms_norm", normalize)

    def gemm(copy):
        def multiply(a):
            assert torch.equal(a, inputs.a)
            log.append(copy)

        return multiply

    call = inputs.rotation([gemm(copy) for copy in range(2)])
    for _ in range(3):
        call()
    assert log == ["norm", 0, "norm", 1, "norm", 0]


def test_weights_lie_two_caches_apart(monkeypatch):
    monkeypatch.setattr("tilewright.bench.timing.l2_cache_bytes", lambda device: 50 << 20)
    args = bench.parse_arguments(["gemm", "--m=1"])
    assert {case.between_bytes for case in cases(args, "cuda:0")} == {100 << 20}
    assert "between_bytes" not in next(cases(args, "cuda:0")).to_json()


@pytest.mark.parametrize("shape", ["48", "48x60", "axb"])
def test_a_shape_is_two_numbers(shape):
    with pytest.raises(SystemExit):
        bench.parse_arguments(["gemm", "--shapes", shape])


def test_work_and_bytes():
    assert CASE.flops == 2 * 3 * 32 * 64
    assert CASE.compulsory_bytes == 32 * 64 * 9 // 16 + 2 * 3 * 64 + 2 * 3 * 32
    w4a4 = dataclasses.replace(CASE, w4a4=True)
    assert w4a4.compulsory_bytes == (3 + 32) * 64 * 9 // 16 + 2 * 3 * 32
    chain = dataclasses.replace(CASE, rmsnorm=True)
    assert chain.compulsory_bytes == CASE.compulsory_bytes + 2 * 2 * 3 * 64


def test_the_oracle_decodes_as_the_library_does():
    codes = numpy.arange(256, dtype=numpy.uint8).repeat(8).reshape(128, 16)
    scales = numpy.arange(128, dtype=numpy.uint8).repeat(2).reshape(128, 2)
    global_scale = numpy.array([8.0], numpy.float32)
    decoded = gemm_oracle._dequantized(codes, scales, global_scale)
    expected = to_float64(dequantize(codes, scales, global_scale))
    numpy.testing.assert_array_equal(decoded, expected)


def test_all_forms_of_the_inputs_hold_the_same_values():
    inputs = CASE.make_inputs(0)
    (wide,) = inputs.wide_weights[0]
    codes, scales = inputs.weight
    exact = dequantize(codes, scales, inputs.global_scale)
    assert (to_float64(wide) == to_float64(exact)).all()
    exact = to_float64(inputs.a) @ to_float64(wide).T
    numpy.testing.assert_allclose(to_float64(inputs.expected), exact, rtol=1e-12, atol=1e-9)
    assert numpy.isnan(to_float64(inputs.new_output())).all()
    again = CASE.make_inputs(0)
    assert (to_float64(again.a) == to_float64(inputs.a)).all()


@pytest.mark.parametrize("place", [(0, 0), (1, 13), (2, 7), (-1, -1)])
def test_an_error_is_seen_wherever_it_is(place):
    inputs = CASE.make_inputs(0)
    (packed,) = inputs.packed_weights[0]
    scale = {"global_scale_b": inputs.global_scale, "global_scale_b_kind": "encode"}
    out = tilewright.gemm_nvfp4(inputs.a, packed, **scale, n=32)
    assert is_right(inputs, out)
    out[place] += 50
    assert CASE.errors(inputs, out).rel_fro > 0.1
    assert not is_right(inputs, inputs.new_output())


@pytest.mark.parametrize(("dtype", "name"), [("fp16", "float16"), ("bf16", "bfloat16")])
@pytest.mark.parametrize("scale", [1, 2.0**-26])  # which makes FP16's subnormal
def test_rounding_is_to_nearest_even(dtype, name, scale):
    pytest.importorskip("ml_dtypes")
    values = numpy.arange(-5000, 5000) * scale  # with all the ties
    expected = values.astype(name).astype(float)
    numpy.testing.assert_array_equal(gemm_oracle._rounded(values, dtype), expected)


@pytest.mark.parametrize(("dtype", "peer_limit"), [("bf16", 5e-3), ("fp16", 7e-4)])
def test_what_ours_and_what_peers_may_add_to_the_rounding(dtype, peer_limit):
    case = dataclasses.replace(CASE, dtype=dtype)
    inputs = case.make_inputs(0)
    exact = inputs.expected
    rounded = gemm_oracle._rounded(exact, dtype)
    error = case.errors(inputs, rounded).rel_fro
    near, far = (exact + (rounded - exact) * (1 + more / error) for more in (0.9e-6, 1.1e-6))
    results = {"tilewright/a": rounded, "tilewright/b": near, "tilewright/c": far, "peer": far}
    peers = [
        Scripted(name, call=lambda _, result=result: result) for name, result in results.items()
    ]
    rules = Rules(samples=1, gap_s=0, max_seconds=5, check=True, seed=0)
    entrants = race(peers, case, CpuTimer(), CpuMachine(), rules)
    assert [entrant.failed for entrant in entrants] == [False, False, True, False]
    limits = [case.error_limit(inputs, entrant.peer.is_ours) for entrant in entrants]
    assert limits == pytest.approx([error + 1e-6] * 3 + [peer_limit], rel=1e-9)


@pytest.mark.parametrize(
    ("size", "between", "count"), [(66, 126, 3), (8, 126, 17), (235, 126, 2), (9, 0, 1)]
)
def test_copies(size, between, count):
    assert copies_to_rotate(size, between) == count
    assert (count - 1) * size >= between


def test_copies_of_a_weight_are_read_in_turn():
    inputs = dataclasses.replace(CASE, between_bytes=3000).make_inputs(0)
    codes = [codes for codes, _ in inputs.coded_weights]
    assert len(codes) == 4  # of 1152 bytes
    assert len({numpy.asarray(array).ctypes.data for array in codes}) == 4
    assert all((array == codes[0]).all() for array in codes)
    call = Rotation([lambda i=i: i for i in range(3)])
    assert [call() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_warming_up_has_the_supported_cases_and_may_fail(capsys):
    seen = []

    class Choosy(Scripted):
        def supports(self, case):
            return "too few" if case.m < 3 else None

        def warm_up(self, cases):
            seen.extend(cases)
            raise RuntimeError("no compiler")

    warm_up([Choosy()], [CASE, dataclasses.replace(CASE, m=1)])
    assert seen == [CASE]
    assert "warming up scripted: RuntimeError: no compiler" in capsys.readouterr().err


def test_the_steps_race_where_they_are_named():
    names = "gemm_naive,gemm_tiled,gemm_swizzled,nvfp4_simple"
    steps = bench.load_kernels("gemm", names, "cuda:0")
    assert [step.name for step in steps] == [f"tilewright/{name}" for name in names.split(",")]
    assert not any("gemm_" in step.name for step in bench.load_kernels("gemm", "all", "cuda:0"))
    assert [step.name for step in bench.load_kernels("gemm", "all", "cpu")] == ["tilewright/cpu"]
    for step in steps:
        assert step.supports(dataclasses.replace(CASE, device="cuda:0")) or "a GPU is here"


def test_configs_of_nvfp4_race_where_they_are_named(monkeypatch):
    named = bench.load_kernels("gemm", "nvfp4/*", "cuda:0")
    assert [row.name for row in named] == [f"tilewright/nvfp4/{i}" for i in range(12)]
    assert not any("/nvfp4/" in row.name for row in bench.load_kernels("gemm", "all", "cuda:0"))
    kernels = []

    def multiply(a, packed, *, kernel, b_is_constant, **options):
        kernels.append((kernel, b_is_constant))
        return gemm(a, packed, **options)

    gemm = tilewright.gemm_nvfp4
    monkeypatch.setattr(tilewright, "gemm_nvfp4", multiply)
    inputs = CASE.make_inputs(0)
    for options, b_is_constant in (([], True), (["--no-constant-weights"], False)):
        assert named[1].configure(bench.parse_arguments(["gemm", *options]))
        assert is_right(inputs, named[1].prepare(CASE, inputs)())
        assert kernels.pop() == ("nvfp4/1", b_is_constant)
        assert named[1].setup(CASE) == (None if b_is_constant else {"b_is_constant": False})


def test_a_step_is_given_the_dequantised_weight(monkeypatch):
    (step,) = bench.load_kernels("gemm", "gemm_tiled", "cuda:0")

    def multiply(a, b, out, kernel):
        assert kernel == "gemm_tiled"
        out[...] = in_float64(a) @ in_float64(b).T
        return out

    monkeypatch.setattr(tilewright, "gemm_bf16", multiply)
    inputs = CASE.make_inputs(0)
    assert is_right(inputs, step.prepare(CASE, inputs)())


def test_a_problem_that_a_kernel_does_not_take_has_its_reason():
    (cpu,) = bench.load_kernels("gemm", "cpu", "cpu")
    assert cpu.supports(CASE) is None
    problem = tilewright._kernels.gemm_nvfp4_problem_of(CASE.to_json() | {"a_dtype": "fp32"}, False)
    reason = tilewright._native.why_not("cpu", problem)
    assert reason.startswith("a: ")
    with pytest.raises(ValueError, match="kernel: is 'k4', must be one of kernels"):
        tilewright._native.why_not("k4", problem)


def test_gemm_bf16_checks_its_arguments():
    a, b = (numpy.zeros((16, 64), numpy.float32) for _ in range(2))
    with pytest.raises(tilewright.Error, match="a: has dtype"):
        tilewright.gemm_bf16(a, b)
    with pytest.raises(tilewright.ArgumentTypeError, match="kernel: is 3"):
        tilewright.gemm_bf16(a, b, kernel=3)


@needs_gpu
def test_race_on_the_gpu(tmp_path):
    path = tmp_path / "race.jsonl"
    arguments = ["gemm", "--device=cuda", "--shapes", "256x512", "--m=1,33", "--check"]
    arguments += ["--kernels=gemm_*,nvfp4*", "--peers=cublas", "--omit-unsupported"]
    assert bench.main([*arguments, "--samples=20", f"--json={path}"]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {"tilewright/gemm_naive", "cublas"} <= {line["impl"] for line in lines}
    for line in lines:
        VALIDATOR.validate(line)
        assert (line["cold_by"], line["samples"]) == ("rotation", 20)
        assert 1 <= line["launches"] <= 20  # fewer where others keep the GPU busy


@needs_gpu
@pytest.mark.parametrize(
    "options",
    [["--rmsnorm"], ["--rmsnorm", "--timed=graph"], ["--batch-invariant=both", "--timed=alone"]],
)
def test_races_of_other_kinds_on_the_gpu(tmp_path, ran, options):
    path = tmp_path / "race.jsonl"
    arguments = ["gemm", "--device=cuda", "--shapes", "256x512", "--m=1,33", "--check"]
    arguments += ["--kernels=nvfp4", "--peers=cublas", "--no-rotate-weights", "--samples=20"]
    assert bench.main([*arguments, *options, f"--json={path}"]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in ran(lines, "lines"):
        VALIDATOR.validate(line)
        assert line["graph"] == ("--timed=graph" in options) if line["supported"] else True
    refused = [line["impl"] for line in lines if not line["supported"]]
    assert refused == ["cublas"] * (2 if "--batch-invariant=both" in options else 0)
