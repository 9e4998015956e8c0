"""The table of the NVFP4 quantiser beside a copy of as many bytes."""

import pathlib
from typing import Any

from tilewright.plot.results import LinesOfRace
from tilewright.plot.text import markdown, number, ratio

OURS, COPY = "tilewright/quantize", "copy"


def quantize_table(path: pathlib.Path) -> str:
    """TB/s: a row a case, the quantiser and the copy. Of two lines of the same the last counts."""
    results = LinesOfRace.read(path)
    speeds: dict[tuple[str, ...], dict[str, float]] = {}
    for line in results.lines:
        if line["supported"]:
            speeds.setdefault(_cells(line["case"]), {})[line["impl"]] = line["gbps"] / 1e3
    header = ["matrix", "scales", "global scale", "quantiser", "copy", "quantiser to copy"]
    body = [[*cells, *_speeds(by_impl)] for cells, by_impl in speeds.items()]
    return f"{markdown(header, body, 3)}\n\nTB/s, medians. {results.provenance}."


def _cells(case: dict[str, Any]) -> tuple[str, ...]:
    matrix = f"{case['m']} × {case['k']} {case['dtype']}"
    return matrix, case["scale_layout"], case["global_scale"]


def _speeds(by_impl: dict[str, float]) -> list[str]:
    ours, copy = by_impl.get(OURS), by_impl.get(COPY)
    return [number(ours), number(copy), ratio(ours / copy if ours and copy else None)]
