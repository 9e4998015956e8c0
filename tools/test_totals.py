"""Sums test reports: test_totals.py JUNIT_XML... prints "N passed, N failed, N skipped".

Fails where a test failed or a report is missing, which counts as one failed test.
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree


def outcome(case: xml.etree.ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    # ctest also reports as skipped what it could not start; only these are a test's own word.
    started = case.get("status") is None or "SKIP_" in skipped.get("message", "")
    return "skipped" if started else "failed"


def main() -> int:
    totals: collections.Counter = collections.Counter()
    for path in map(pathlib.Path, sys.argv[1:]):
        if not path.exists():
            print(f"{path}: no such report")
            totals["failed"] += 1
            continue
        totals.update(map(outcome, xml.etree.ElementTree.parse(path).iter("testcase")))
    print(", ".join(f"{totals[key]} {key}" for key in ("passed", "failed", "skipped")))
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
