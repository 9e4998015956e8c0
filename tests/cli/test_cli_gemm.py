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
    assert result.stdout.split()[0] == "cpu"
    assert "ok: relative" in result.stdout
    assert ("packed weight" in result.stdout) == ("--prepack" in case)


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
        (["--kernel", "k4"], "--kernel: is 'k4', must be one of auto, all, gemm_naive, gemm_tiled"),
        (["--kernel", "nvfp4_simple"], "kernel nvfp4_simple takes tensors on cuda"),
        (["--kernel", "gemm_naive"], "a: is on cpu, kernel gemm_naive takes tensors on cuda"),
        (["--kernel", "gemm_tiled", "--a-dtype", "nvfp4"], "a: has dtype e2m1x2, must be bf16"),
        (["--kernel", "gemm_swizzled", "--dtype", "fp32"], "c: has dtype fp32, must be bf16"),
    ],
)
def test_bad_usage(cli, wrong, message):
    result = cli("gemm", "--n", "48", *wrong)
    assert result.returncode == USAGE
    assert message in result.stderr


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--l", "3"], "l: is 3, kernel gemm_naive takes 1"),
        (["--bias"], "bias: is given, kernel gemm_naive takes none"),
        (["--residual"], "residual: is given, kernel gemm_naive takes none"),
    ],
)
def test_what_the_bf16_steps_do_not_take(cli, asked, message):
    result = cli(*SMALL, "--kernel", "gemm_naive", *asked)
    assert result.returncode == UNSUPPORTED
    assert message in result.stderr
    result = cli(*SMALL, "--kernel", "all", *asked)
    assert result.returncode == PASS
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["cpu"]


@pytest.mark.parametrize(
    ("sizes", "needed_bytes"),
    [
        (["--m", "1000000000", "--n", "16384", "--k", "16"], 10**9 * (3 * 16384 * 2 + 2 * 16 * 2)),
        (["--n", "1000000000", "--k", "16384"], 10**9 * 16384 * 4),
        (["--l", "1000000000", "--n", "1000000000"], 10**18 * 4096 * 4),
    ],
)
def test_what_fits_nowhere_is_unsupported(cli, sizes, needed_bytes):
    result = cli("gemm", *sizes)
    assert result.returncode == UNSUPPORTED
    needed = f"needs {needed_bytes} bytes of host memory"
    assert result.stderr.startswith(f"error: memory: the case {needed}")
