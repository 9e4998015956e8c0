"""Tables of operations that read and write each byte once, beside a copy of as many bytes."""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from tilewright.bench.peers import COPY, OURS
from tilewright.plot.results import LinesOfRace
from tilewright.plot.text import markdown, number, ratio

Cells = Callable[[dict[str, Any]], tuple[str, ...]]


def quantize_table(path: pathlib.Path) -> str:
    """TB/s of the NVFP4 quantiser and the copy: a row a case."""
    header = ["matrix", "scales", "global scale", "quantiser", "copy", "quantiser to copy"]
    return _table(LinesOfRace.read(path), header, _cells)


def copies_table(path: pathlib.Path) -> str:
    """The same of any operation: the cells of a case are its values."""
    results = LinesOfRace.read(path)
    header = [name.replace("_", " ") for name in results.lines[0]["case"]]
    return _table(results, [*header, "ours", "copy", "to copy"], _values)


def to_copy(results: LinesOfRace) -> Iterator[float | None]:
    """The bandwidth of each case over the copy's."""
    for by_impl in _speeds_of(results, _values).values():
        yield _ratio(*_pair(by_impl))


def _table(results: LinesOfRace, header: list[str], cells_of: Cells) -> str:
    body = [[*cells, *_speeds(by_impl)] for cells, by_impl in _speeds_of(results, cells_of).items()]
    table = markdown(header, body, len(header) - 3)
    return f"{table}\n\nTB/s, medians. {results.provenance}."


def _speeds_of(results: LinesOfRace, cells_of: Cells) -> dict[tuple[str, ...], dict[str, float]]:
    """TB/s of each implementation. Of two lines of the same the last counts."""
    speeds: dict[tuple[str, ...], dict[str, float]] = {}
    for line in results.lines:
        if line["supported"]:
            speeds.setdefault(cells_of(line["case"]), {})[line["impl"]] = line["gbps"] / 1e3
    return speeds


def _values(case: dict[str, Any]) -> tuple[str, ...]:
    words = {True: "yes", False: "no"}
    return tuple(words[v] if isinstance(v, bool) else str(v) for v in case.values())


def _cells(case: dict[str, Any]) -> tuple[str, ...]:
    matrix = f"{case['m']} × {case['k']} {case['dtype']}"
    return matrix, case["scale_layout"], case["global_scale"]


def _pair(by_impl: dict[str, float]) -> tuple[float | None, float | None]:
    """(ours, the copy)"""
    ours = (speed for impl, speed in by_impl.items() if impl.startswith(f"{OURS}/"))
    return max(ours, default=None), by_impl.get(COPY)


def _ratio(ours: float | None, copy: float | None) -> float | None:
    return ours / copy if ours and copy else None


def _speeds(by_impl: dict[str, float]) -> list[str]:
    ours, copy = _pair(by_impl)
    return [number(ours), number(copy), ratio(_ratio(ours, copy))]
