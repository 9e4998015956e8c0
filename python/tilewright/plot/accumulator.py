"""Tables of what `tilewright probe-accumulator` found, and of what follows from it."""

import pathlib
from typing import Any

from tilewright.plot.results import LinesOfRace
from tilewright.plot.text import markdown, number

MOST_BITS = 29  # stands for as many or more
TILE_KEYS = 128
INTERVALS = (1, 2, 4, 8)  # key tiles
WEIGHTS_ERROR = 0.0265  # relative, of weights rounded to E4M3's three bits: docs/fp8.md

Case = tuple[str, int, int]  # dtype, N, K
Found = dict[str, Any]


def accumulator_table(path: pathlib.Path) -> str:
    """A row for each finding, with the N and K that it holds for. Of two lines the last counts."""
    results = LinesOfRace.read(path)
    groups: dict[tuple[str, ...], dict[int, list[int]]] = {}  # cells -> K -> all N
    for (dtype, n, k), found in _found(results).items():
        groups.setdefault((dtype, *_cells(found)), {}).setdefault(k, []).append(n)
    body = []
    for (dtype, *cells), by_k in groups.items():
        by_n: dict[tuple[int, ...], list[int]] = {}
        for k, columns in by_k.items():
            by_n.setdefault(tuple(columns), []).append(k)
        body += [[dtype, _span(ns), _span(ks), *cells] for ns, ks in by_n.items()]
    header = ["dtype", "N", "K", "rounding", "of", "bits", "beside C", "of C", "of a sum"]
    return f"{markdown(header, body, 5)}\n\n{results.provenance}."


def promotion_table(path: pathlib.Path) -> str:
    """What sums of E4M3 products lose between promotions, and the interval that follows."""
    results = LinesOfRace.read(path)
    found = [found for (dtype, *_), found in _found(results).items() if dtype == "e4m3"]
    if not found:
        return ""
    narrowest = min(found, key=lambda one: one["bits_beside_c"])
    bits = narrowest["bits_beside_c"]
    if narrowest["rounding"].startswith("nearest"):
        return f"{bits} bits, rounded to nearest: no loss on average. {results.provenance}."
    header = ["key tiles", "keys", "lost, %"]
    lost = {tiles: 100 * tiles * TILE_KEYS / 2 ** (bits + 1) for tiles in INTERVALS}
    body = [[str(tiles), str(tiles * TILE_KEYS), number(lost[tiles])] for tiles in INTERVALS]
    allowed = [tiles for tiles in INTERVALS if lost[tiles] <= 100 * WEIGHTS_ERROR]
    longest = f"every {allowed[-1]} at the latest" if allowed else "more often than every tile"
    return (
        f"{markdown(header, body, 0)}\n\n"
        f"{bits} bits beside C, tiles of {TILE_KEYS} keys. Promotion {longest}; from "
        f"{2 ** (bits - 1)} keys of one weight on, nothing more is added. {results.provenance}."
    )


def _found(results: LinesOfRace) -> dict[Case, Found]:
    cases = ((line["case"], line["accumulator"]) for line in results.lines)
    return {(case["dtype"], case["n"], case["k"]): found for case, found in cases}


def _cells(found: Found) -> tuple[str, ...]:
    each = found["rounds_each_product"]
    of = "—" if each is None else "each product" if each else "their sum"
    bits = _width(found["bits"])
    if found["most_bits"] != found["bits"]:
        bits += f" to {_width(found['most_bits'])}"
    widths = (_width(found[name]) for name in ("bits_beside_c", "bits_of_c", "bits_of_sum"))
    return found["rounding"].replace("_", " "), of, bits, *widths


def _width(bits: int) -> str:
    return f"{bits} or more" if bits == MOST_BITS else str(bits)


def _span(values: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, values)) if len(values) < 3 else f"{values[0]} to {values[-1]}"
