"""tilewright gemm: exit status, messages, checks, results files."""

import pytest
from results_file import read_lines

PASS, _, USAGE, UNSUPPORTED = range(4)
SMALL = ["gemm", "--m", "5", "--n", "48", "--k", "128", "--gap", "0", "--samples", "5"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("a_dtype", ["bf16", "fp16", "nvfp4"])
@pytest.mark.parametrize(
    "case",
    [
        [],
        ["--l", "3"],
        ["--bias", "--residual"],
        ["--scale-layout", "swizzled", "--l", "2"],
        ["--prepack", "--l", "2"],
        ["--batch-invariant"],
        ["--prepack", "--scale-layout", "swizzled"],
    ],
)
def test_check_passes_on_the_cpu(cli, a_dtype, dtype, case):
    result = cli(*SMALL, "--a-dtype", a_dtype, "--dtype", dtype, "--check", *case)
    assert result.returncode == PASS, result.stdout + result.stderr
    header, row = result.stdout.splitlines()
    assert header.split()[:2] == ["kernel", "case"] and row.split()[0] == "cpu"
    assert "ok: relative" in row
    assert ("packed weight" in row) == ("--prepack" in case)


def test_results_file(cli, tmp_path):
    path = tmp_path / "gemm.jsonl"
    assert cli(*SMALL, "--bias", "--check", "--kernel", "all", "--json", path).returncode == PASS
    (line,) = read_lines(path)
    assert line["operation"] == "gemm_nvfp4" and line["impl"] == "tilewright/cpu"
    assert line["case"] == {
        "m": 5,
        "n": 48,
        "k": 128,
        "l": 1,
        "a_dtype": "bf16",
        "b_dtype": "nvfp4",
        "out_dtype": "bf16",
        "bias": True,
    }
    assert 0 < line["rel_fro_error"] < 2**-9


def test_batch_invariant_results_say_so(cli, tmp_path):
    path = tmp_path / "gemm.jsonl"
    assert cli(*SMALL, "--batch-invariant", "--json", path).returncode == PASS
    (line,) = read_lines(path)
    assert line["case"]["batch_invariant"] is True
    assert cli(*SMALL, "--json", path).returncode == PASS
    (line,) = read_lines(path)
    assert "batch_invariant" not in line["case"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--k", "40"], "--k: is 40, must be a multiple of 16"),
        (["--m", "0"], "--m: is 0, must be a whole number from 1 to 2^30 - 1"),
        (["--a-dtype", "e4m3"], "--a-dtype: is 'e4m3', must be bf16, fp16 or nvfp4"),
        (["--dtype", "nvfp4"], "--dtype: is 'nvfp4'"),
        (["--scale-layout", "8x4"], "--scale-layout: is '8x4', must be linear or swizzled"),
    ],
)
def test_bad_usage(cli, wrong, message):
    result = cli("gemm", "--n", "48", *wrong)
    assert result.returncode == USAGE
    assert message in result.stderr


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--a-dtype", "nvfp4"], "a_dtype: is nvfp4, kernel gemm_naive takes bf16"),
        (["--dtype", "fp32"], "dtype: is fp32, kernel gemm_naive takes bf16"),
        (["--l", "3"], "l: is 3, kernel gemm_naive takes 1"),
        (["--bias"], "bias: is given, kernel gemm_naive takes none"),
        (["--residual"], "residual: is given, kernel gemm_naive takes none"),
    ],
)
def test_what_the_bf16_steps_do_not_take(cli, asked, message):
    result = cli(*SMALL, "--kernel", "gemm_naive", *asked)
    assert result.returncode == UNSUPPORTED
    assert f"cannot run: {message}" in result.stdout
    result = cli(*SMALL, "--kernel", "all", *asked)
    assert result.returncode == PASS
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["cpu"]


@pytest.mark.parametrize("kernel", ["nvfp4_simple", "gemm_naive"])
def test_a_kernel_of_another_device_is_unsupported(cli, kernel):
    result = cli(*SMALL, "--kernel", kernel, "--device", "cpu")
    assert result.returncode == UNSUPPORTED
    row = result.stdout.splitlines()[1]
    reason = row.partition("cannot run: ")[2]  # it differs where this build has CUDA
    assert row.startswith(kernel) and f"{kernel} " in reason


def test_the_reproducing_command_has_the_whole_case(cli):
    asked = ["--a-dtype", "nvfp4", "--dtype", "fp16", "--scale-layout", "swizzled", "--l", "2"]
    flags = ["--bias", "--residual", "--prepack", "--batch-invariant", "--check"]
    result = cli(*SMALL, "--seed", "7", "--kernel", "nvfp4", "--device", "cpu", *asked, *flags)
    (command,) = [line for line in result.stdout.splitlines() if "  reproduce: " in line]
    arguments = command.split()[2:]
    again = cli(*arguments, DTYPE="fp32", SCALE_LAYOUT="linear", SEED="1", KERNEL="cpu")
    assert again.stdout == result.stdout
    for each in ("--m 5", "--n 48", "--k 128", "--seed 7", " ".join(asked[:2]), *flags):
        assert each in command
