"""The race of conversions beside a copy, on the CPU and where there is one on the GPU."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")

from test_bench import needs_gpu
from test_results import VALIDATOR
from tilewright.bench import __main__ as bench
from tilewright.bench.convert import CONVERSIONS, DequantizeCase, RopeCase, RotateQuantizeCase

EACH = pytest.mark.parametrize("name", CONVERSIONS)


def cases_of(arguments, device="cpu"):
    return list(bench.convert.cases(bench.parse_arguments(arguments), device))


def race(tmp_path, name, *arguments):
    path = tmp_path / "race.jsonl"
    fixed = ["--samples=2", "--gap=0", "--check", f"--json={path}"]
    assert bench.main(["convert", name, *fixed, *arguments]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
        assert line["supported"] and line["operation"] == name
    assert [line["impl"] for line in lines[1::2]] == ["copy"] * (len(lines) // 2)
    return lines[::2]


@EACH
def test_lines_of_a_small_sweep(tmp_path, name):
    lines = race(tmp_path, name, "--device=cpu")
    assert len(lines) == len(cases_of(["convert", name]))
    for line in lines:
        assert line["impl"] == "tilewright/cpu" and line["rel_fro_error"] == 0
        assert line["tflops"] == 0 < line["gbps"]


@pytest.mark.parametrize(
    ("case", "count"),
    [
        (RotateQuantizeCase("cpu", batch=2, len=256, heads=4), 256 * 8 * (128 * 3 + 4 / 128)),
        (DequantizeCase("cpu", rows=100), 100 * (584 + 1024 + 8)),
        (DequantizeCase("cpu", rows=10, format="e2m1", dtype="fp32"), 10 * (288 + 2048 + 8)),
        (RopeCase("cpu", tokens=10, heads=3), 10 * (2 * 3 * 1024 + 8)),
    ],
)
def test_bytes(case, count):
    assert case.compulsory_bytes == count and case.label.startswith(case.operation)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@EACH
def test_the_reproducing_arguments_give_the_case(name, device):
    for case in cases_of(["convert", name], device):
        assert cases_of(case.arguments().split(), device) == [case]


def test_the_sweep_has_attentions_heads():
    cases = cases_of(["convert", "rotate_quantize"], "cuda:0")
    assert {case.heads * case.head_dim for case in cases} == {2048}
    assert all(case.rotated != case.transposed for case in cases)
    assert len({case.head_dim for case in cases}) == 3


def test_a_key_that_the_case_has_not_is_refused():
    with pytest.raises(SystemExit, match="--set: rows is not one of"):
        cases_of(["convert", "rope", "--set", "rows=3"])


@EACH
def test_one_wrong_value_is_seen(name):
    case = cases_of(["convert", name])[0]
    inputs = case.make_inputs(0)
    (ours,) = [
        peer
        for peer in bench.load_kernels("convert", "cpu", "cpu")
        if peer.kernel.operation == name
    ]
    out = ours.prepare(case, inputs)()
    assert case.errors(inputs, out).rel_fro == 0
    wrong = out.float()
    wrong.flatten()[17] += 1
    assert case.errors(inputs, wrong).rel_fro > case.error_limit(inputs, is_ours=True)


def test_a_reproduced_race_has_one_kernel(tmp_path):
    case = dataclasses.replace(RopeCase("cpu"), tokens=3, heads=1)
    words = case.arguments().split()[2:]
    (line,) = race(tmp_path, "rope", *words, "--kernels=cpu")
    assert line["case"] == case.to_json()


@needs_gpu
@EACH
def test_race_on_the_gpu(tmp_path, name):
    lines = race(tmp_path, name, "--device=cuda")
    assert all(line["rel_fro_error"] == 0 and line["cold_l2"] for line in lines)
