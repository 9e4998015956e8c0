"""tilewright attention --dtype e4m3."""

import pytest
from results_file import read_lines

PASS, USAGE = 0, 2
SMALL = ["--seqlen", "40", "--heads", "2", "--headdim", "16", "--gap", "0"]


@pytest.mark.parametrize(
    "case",
    [
        [],
        ["--incoherent"],
        ["--incoherent", "--causal", "--kv-seqlen", "300", "--kv-heads", "1"],
        ["--causal", "--kv-seqlen", "131", "--v-headdim", "24", "--softcap", "3", "--sinks"],
    ],
)
def test_check_passes_on_the_cpu(cli, tmp_path, case):
    checked = ["--dtype", "e4m3", "--check", "--json", "out.jsonl"]
    result = cli("attention", *checked, *SMALL, *case)
    assert result.returncode == PASS, result.stdout + result.stderr
    assert "ok: relative" in result.stdout.splitlines()[1]
    (line,) = read_lines(tmp_path / "out.jsonl")
    assert line["operation"] == "attention_fp8" and line["impl"] == "tilewright/cpu"
    assert line["case"]["dtype"] == "e4m3"
    assert line["case"].get("incoherent", False) == ("--incoherent" in case)


def test_rotating_what_is_not_fp8_is_refused(cli):
    result = cli("attention", "--incoherent", *SMALL)
    assert result.returncode == USAGE
    assert "--incoherent: is given, must be left out where --dtype is not e4m3" in result.stderr
