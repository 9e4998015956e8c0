"""`tilewright probe-accumulator` where there is no GPU: exit status and messages."""

import pytest

_, _, USAGE, UNSUPPORTED = range(4)


def test_the_probe_says_that_it_needs_a_gpu(cli, tmp_path):
    path = tmp_path / "lines.jsonl"
    result = cli("probe-accumulator", "--json", path)
    assert result.returncode == UNSUPPORTED
    assert result.stdout == ""
    message = "error: probe-accumulator: needs a Hopper GPU (compute capability 9.0), but "
    assert result.stderr.startswith(message)
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu"], "--device: is cpu, must be cuda or cuda:N"),
        (["--device", "gpu"], "--device: is 'gpu', must be cpu, cuda or cuda:N"),
        (["--n", "8,24"], "--n: is 24, must be one of 8, 16, 32, 64, 96, 128, 192, 256"),
        (["--instructions", "17"], "--instructions: is 17, must be a whole number from 1 to 16"),
        (["--instructions", "0"], "--instructions: is 0, must be a whole number from 1 to 16"),
        (["--dtype", "fp16"], "--dtype: is 'fp16', must be both, e4m3 or bf16"),
    ],
)
def test_bad_usage_of_the_probe(cli, arguments, message):
    result = cli("probe-accumulator", *arguments)
    assert result.returncode == USAGE
    assert message in result.stderr
