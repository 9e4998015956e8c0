#!/usr/bin/env python3
"""Sweeps that are killed, or run out of disk, while they write: killed_sweeps.py --help.

Each resumes a results file. What the file held before must be in it afterwards, byte for byte, and
every line must be whole. The sweeps of a campaign go on with one file until it is complete, then
with a new one:

    tests/fuzz/killed_sweeps.py build/cpu/cli/tilewright --count 500
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

CASES = 72
SWEEP = ["sweep", "--seqlens", "1,2,4,8,16,32", "--headdims", "1,2,4,8,16,32", "--tokens", "32"]
SWEEP += ["--hidden", "32", "--samples", "1", "--resume", "--json"]
ENVIRONMENT = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
ENDED = "(ended before its signal)"
OTHER = {"case": {}, "impl": "other", "impl_version": "0", "gpu": "other"}


def start(binary: str, path: pathlib.Path, gap_s: float = 0, **keywords) -> subprocess.Popen:
    return subprocess.Popen(
        [binary, *SWEEP, path, "--gap", str(gap_s)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        **keywords,
    )


def whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def new_content(rng: random.Random) -> bytes:
    """Lines of another run, the last one sometimes cut off."""
    count = rng.randrange(1, 12)
    lines = [
        json.dumps(OTHER | {"run": f"{i} {'x' * rng.randrange(200)}"}, separators=(",", ":"))
        for i in range(count)
    ]
    content = "".join(line + "\n" for line in lines).encode()
    return content[: rng.choice([len(content), rng.randrange(len(content))])]


def find_loss(before: bytes, after: bytes) -> str | None:
    """What is wrong with the file."""
    if after == before:
        return None
    if not after.startswith(whole_lines(before)):
        return "lines that were there are gone"
    if not after.endswith(b"\n"):
        return "the last line is torn"
    try:
        for line in after.splitlines():
            json.loads(line)
    except ValueError:
        return f"a line is torn: {line!r}"
    return None


# ---- Ways to end a sweep


def interrupt(binary: str, path: pathlib.Path, rng: random.Random) -> str:
    """By a signal, 1 to 50 ms after it started, or at any time of a whole sweep."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background; it is inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)
    which = rng.choice([signal.SIGINT, signal.SIGKILL])
    gap_s, longest_s = rng.choice([(0, 0.05), (0.002, 0.05), (0.002, 0.25)])
    process = start(binary, path, gap_s)
    try:
        process.wait(rng.uniform(0.001, longest_s))
    except subprocess.TimeoutExpired:
        process.send_signal(which)
    return which.name if process.wait() == -which else ENDED


def limit_file_size(binary: str, path: pathlib.Path, rng: random.Random) -> str:
    """As by `ulimit -f`."""
    limit = path.stat().st_size + rng.randrange(-200, 3000)

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(limit, 0), max(limit, 0)))

    code = start(binary, path, preexec_fn=set_limit).wait()
    return f"file size limited, exit code {code}"


@contextlib.contextmanager
def tiny_disk(folder: pathlib.Path, size: int) -> Iterator[pathlib.Path]:
    """A disk of so many bytes, up to whole pages."""
    mounted = folder / "tiny"
    mounted.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mounted],
        check=True,
        capture_output=True,
    )
    try:
        yield mounted
    finally:
        subprocess.run(["umount", mounted], check=True)


def fill_disk(binary: str, path: pathlib.Path, rng: random.Random) -> str:
    """On a disk that has room for some more lines, or for no second copy of the file."""
    with tiny_disk(path.parent, path.stat().st_size + rng.randrange(1, 20_000)) as disk:
        there = disk / path.name
        there.write_bytes(path.read_bytes())
        code = start(binary, there).wait()
        path.write_bytes(there.read_bytes())
    return f"disk full, exit code {code}"


def can_mount(folder: pathlib.Path) -> bool:
    try:
        with tiny_disk(folder, 4096):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


# ---- The campaign


@dataclasses.dataclass
class Campaign:
    binary: str
    folder: pathlib.Path
    rng: random.Random
    outcomes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    losses: list[str] = dataclasses.field(default_factory=list)

    def run(self, ways: list[Callable], count: int) -> None:
        """Kills this many sweeps before their end, in each of the ways alternately."""
        path = self.folder / "results.jsonl"
        index = 0
        while index < count:
            if not path.exists() or path.read_bytes().count(b"tilewright/cpu") == CASES:
                path.write_bytes(new_content(self.rng))
            before = path.read_bytes()
            outcome = ways[index % len(ways)](self.binary, path, self.rng)
            after = path.read_bytes()
            self.outcomes[outcome] += 1
            self.outcomes["(left a longer file)"] += after != before
            self.outcomes["(left FILE.unfinished)"] += path.with_suffix(
                ".jsonl.unfinished"
            ).exists()
            index += outcome != ENDED
            loss = find_loss(before, after)
            if loss:
                self.losses.append(f"sweep {index}: {outcome}: {loss}")
                path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", help="the tilewright program")
    parser.add_argument("--count", type=int, default=500, help="sweeps (default: 500)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ways = [interrupt] * 6 + [limit_file_size]
        if can_mount(folder):
            ways.append(fill_disk)
        else:
            print("without full disks: cannot mount one here", file=sys.stderr)
        campaign = Campaign(args.binary, folder, random.Random(args.seed))
        campaign.run(ways, args.count)
    for outcome, count in sorted(campaign.outcomes.items()):
        print(f"{count:6} {outcome}")
    print(
        f"{len(campaign.losses):6} of {args.count} lost lines or tore one",
        *campaign.losses,
        sep="\n",
    )
    return 1 if campaign.losses else 0


if __name__ == "__main__":
    sys.exit(main())
