"""Prints a build's slowest compilations; fails where one took longer than is allowed.

compile_times.py BUILD_DIR
"""

import pathlib
import sys

LIMIT_S = 120
SHOWN = 10


def read_times(log: str) -> dict[str, float]:
    """Seconds that each object took, from .ninja_log; an object's last line counts."""
    times = {}
    for line in log.splitlines()[1:]:
        start_ms, end_ms, _, output, _ = line.split("\t")
        if output.endswith(".o"):
            times[output] = (int(end_ms) - int(start_ms)) / 1000
    return times


def main() -> int:
    build_dir = pathlib.Path(sys.argv[1])
    times = read_times((build_dir / ".ninja_log").read_text())
    times = {output: time for output, time in times.items() if (build_dir / output).exists()}
    slowest = sorted(times, key=times.get, reverse=True)
    for output in slowest[:SHOWN]:
        print(f"{times[output]:7.1f} s  {output}")
    print(f"{sum(times.values()):7.1f} s  all {len(times)} compilations, one after the other")
    too_slow = [output for output in slowest if times[output] > LIMIT_S]
    for output in too_slow:
        print(f"error: {output} took {times[output]:.0f} s, allowed are {LIMIT_S}", file=sys.stderr)
    return 1 if too_slow else 0


if __name__ == "__main__":
    sys.exit(main())
