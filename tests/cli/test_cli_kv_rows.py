"""`tilewright kv-rows`: exit status, messages, results lines."""

import pytest
from results_file import read_lines

PASS, _, USAGE, UNSUPPORTED = range(4)
SMALL_CACHE = ["kv-rows", "--rows", "70", "--page-size", "8", "--gap", "0"]
ROW_BYTES = {"bf16": 1024, "e4m3_bf16": 584, "e4m3": 528, "e2m1": 288}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("row_format", ROW_BYTES)
def test_kv_rows_pass_on_the_cpu(cli, dtype, row_format):
    result = cli(*SMALL_CACHE, "--check", "--dtype", dtype, "--format", row_format)
    assert result.returncode == PASS, result.stdout + result.stderr
    _, cpu, copy, share = result.stdout.splitlines()
    assert cpu.split()[0] == "cpu" and cpu.endswith("ok: every byte is the float64 model's")
    assert copy.split()[0] == "copy"
    assert share.startswith("cpu: ") and share.endswith(" % of the copy's bandwidth")


def test_results_lines_of_kv_rows(cli, tmp_path):
    path = tmp_path / "lines.jsonl"
    for row_format, row_bytes in ROW_BYTES.items():
        options = ("--format", row_format, "--check", "--json", path)
        assert cli(*SMALL_CACHE, *options).returncode == PASS
        rows, copy = read_lines(path)
        assert (
            rows["case"]
            == copy["case"]
            == {
                "rows": 70,
                "dtype": "bf16",
                "format": row_format,
                "page_size": 8,
            }
        )
        assert (rows["impl"], copy["impl"]) == ("tilewright/cpu", "copy")
        moved = 70 * (1024 + 8 + row_bytes)
        assert rows["gbps"] * rows["median_us"] * 1e3 == pytest.approx(moved, 1e-4)


@pytest.mark.parametrize(
    ("option", "value", "status", "message"),
    [
        ("--rows", "0", USAGE, "is 0, must be a whole number from 1 to 2^30 - 1"),
        ("--page-size", "0", USAGE, "is 0, must be a whole number from 1 to 2^30 - 1"),
        ("--format", "e5m2", USAGE, "must be bf16, e4m3_bf16, e4m3 or e2m1"),
        ("--dtype", "fp16", UNSUPPORTED, "has dtype fp16, kernel cpu takes fp32, bf16"),
    ],
)
def test_bad_usage_of_kv_rows(cli, option, value, status, message):
    result = cli("kv-rows", option, value)
    assert result.returncode == status
    assert message in result.stderr + result.stdout
