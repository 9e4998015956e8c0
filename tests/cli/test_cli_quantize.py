"""`tilewright quantize`: exit status, messages, results lines."""

import pytest
from results_file import read_lines

PASS, _, USAGE, _ = range(4)
SMALL_MATRIX = ["quantize", "--rows", "70", "--columns", "208", "--gap", "0"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--scale-layout", "swizzled", "--seed", "1"],
        ["--global-scale", "448"],
        ["--global-scale-kind", "decode", "--scale-layout", "swizzled"],
    ],
)
def test_quantize_passes_on_the_cpu(cli, dtype, options):
    result = cli(*SMALL_MATRIX, "--check", "--dtype", dtype, *options)
    assert result.returncode == PASS, result.stdout + result.stderr
    header, cpu, copy, share = result.stdout.splitlines()
    assert header.split()[:2] == ["kernel", "case"]
    assert cpu.split()[0] == "cpu" and cpu.endswith("ok: every byte is the float64 model's")
    assert copy.split()[0] == "copy"
    assert share.startswith("cpu: ") and share.endswith(" % of the copy's bandwidth")


def test_the_terminals_size_is_not_the_matrixs(cli, tmp_path):
    path = tmp_path / "lines.jsonl"
    for given, size in ((("--rows", "16"), "k"), (("--columns", "16"), "m")):
        result = cli("quantize", *given, "--json", path, COLUMNS="80", ROWS="25")
        assert result.returncode == PASS, result.stderr
        assert {line["case"][size] for line in read_lines(path)} == {8192}


def test_results_lines_of_quantize(cli, tmp_path):
    path = tmp_path / "lines.jsonl"
    assert cli(*SMALL_MATRIX, "--check", "--json", path).returncode == PASS
    quantize, copy = read_lines(path)
    assert quantize["run"] == copy["run"] and quantize["case"] == copy["case"]
    assert quantize["case"]["m"] == 70 and quantize["case"]["global_scale"] == "computed"
    assert (quantize["impl"], copy["impl"]) == ("tilewright/quantize", "copy")
    assert quantize["max_abs_error"] == 0 and copy["max_abs_error"] is None
    read_and_written = 70 * 208 * 2 * 2 + 70 * 208 // 2 + 70 * 13
    assert quantize["gbps"] * quantize["median_us"] * 1e3 == pytest.approx(read_and_written, 1e-4)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--columns", "40", "must be a multiple of 16"),
        ("--rows", "0", "is 0, must be a whole number from 1 to 2^30 - 1"),
        ("--columns", "1073741824", "is 1073741824, must be a whole number from 1 to 2^30 - 1"),
        ("--dtype", "e4m3", "must be bf16, fp16 or fp32"),
        ("--scale-layout", "8x4", "must be linear or swizzled"),
        ("--global-scale-kind", "both", "must be encode or decode"),
        ("--global-scale", "abc", "is abc, must be a number of FP32"),
        ("--global-scale", "1e99", "is 1e99, must be a number of FP32"),
    ],
)
def test_bad_usage_of_quantize(cli, option, value, message):
    result = cli("quantize", option, value)
    assert result.returncode == USAGE
    assert result.stderr.startswith(f"error: {option}: ") and message in result.stderr
