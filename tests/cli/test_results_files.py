"""Results files lose no line, whatever ends what writes them; no output is lost unsaid."""

import os
import pathlib
import random

import pytest
from killed_sweeps import Campaign, interrupt, limit_file_size
from results_file import read_lines

PASS, _, USAGE, UNSUPPORTED = range(4)
SIZES = ["--seqlens", "16,32", "--headdims", "16,32", "--tokens", "32", "--hidden", "32"]
SWEEP = ["sweep", *SIZES, "--gap", "0", "--samples", "1"]
SMALL = {
    "attention": ["--seqlen", "16", "--headdim", "16", "--heads", "1"],
    "quantize": ["--rows", "16", "--columns", "16"],
    "gemm": ["--m", "1", "--n", "16", "--k", "16"],
    "sweep": SIZES,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def half_done(cli, path):
    """A sweep's file with its first three lines."""
    assert cli(*SWEEP, "--json", path).returncode == PASS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    return path.read_bytes()


def test_killed_sweeps_lose_no_line(binary, tmp_path):
    campaign = Campaign(binary, tmp_path, random.Random(1))
    campaign.run([interrupt, interrupt, limit_file_size], 30)
    assert not campaign.losses
    assert campaign.outcomes["SIGKILL"] > 0 and campaign.outcomes["SIGINT"] > 0


def test_a_limit_on_the_files_size_is_an_error(cli, path, half_done):
    for kib in (0, 1, 2):
        path.write_bytes(half_done)
        result = cli(*SWEEP, "--json", path, "--resume", before=f"ulimit -f {kib}")
        assert result.returncode == UNSUPPORTED
        assert f"--json: cannot write to '{path}': File too large" in result.stderr
        assert path.read_bytes().startswith(half_done)
        read_lines(path)
        assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_program_left_is_reused(cli, path, half_done):
    left = path.with_name(path.name + ".unfinished")
    left.write_bytes(b"x" * 100_000)
    assert cli(*SWEEP, "--json", path, "--resume").returncode == PASS
    assert path.read_bytes().startswith(half_done)
    assert len(read_lines(path)) == 8
    assert list(path.parent.iterdir()) == [path]


def test_links_and_permissions_stay(cli, tmp_path, path):
    real = tmp_path / "real.jsonl"
    real.write_text("")
    real.chmod(0o640)
    path.symlink_to("real.jsonl")
    assert cli(*SWEEP, "--json", path).returncode == PASS
    assert path.is_symlink() and len(read_lines(real)) == 8
    assert real.stat().st_mode & 0o777 == 0o640
    assert cli(*SWEEP, "--json", tmp_path / "new", before="umask 027").returncode == PASS
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_file_that_may_not_be_written_is_left_alone(cli, path):
    path.write_text("{}\n")
    path.chmod(0o444)
    result = cli(*SWEEP, "--json", path)
    assert result.returncode == USAGE
    assert f"--json: cannot write '{path}': Permission denied" in result.stderr


def test_lines_go_to_pipes_and_devices(cli, tmp_path):
    result = cli(*SWEEP, "--json", "/dev/stdout")
    assert result.returncode == PASS
    assert len([line for line in result.stdout.splitlines() if line.startswith("{")]) == 8
    result = cli(*SWEEP, "--json", "/dev/full")
    assert result.returncode == UNSUPPORTED
    assert "--json: cannot write to '/dev/full': No space left on device" in result.stderr
    assert pathlib.Path("/dev/full").is_char_device(), "no file took its place"


@pytest.mark.parametrize("where", ["full", "closed"])
@pytest.mark.parametrize("command", [*SMALL, "list", "info", "--help", "--version"])
def test_output_that_cannot_be_written_is_no_pass(cli, command, where):
    options = [*SMALL[command], "--gap", "0", "--samples", "1"] if command in SMALL else []
    result = cli(command, *options, before=f"exec {'>/dev/full' if where == 'full' else '>&-'}")
    assert result.returncode == UNSUPPORTED
    assert result.stderr.startswith("error: ")


def test_a_run_whose_output_is_lost_still_writes_its_lines(cli, path):
    assert cli(*SWEEP, "--json", path, before="exec > /dev/full").returncode == UNSUPPORTED
    assert len(read_lines(path)) == 8
