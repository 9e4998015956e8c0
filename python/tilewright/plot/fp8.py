"""The race of attention on FP8: its tables, and what quantising costs beside it."""

import itertools
import pathlib
from functools import cached_property
from typing import Any

from tilewright.plot.figures import plain_length
from tilewright.plot.results import LinesOfRace, Results, Row, short_name
from tilewright.plot.tables import results_table, speeds_table
from tilewright.plot.text import markdown, number

PRODUCTION = ("flash_fp8", "k8")  # sums are promoted after each key tile: what counts as ours


class Fp8Results(Results):
    """Kernels in BF16 and those that show something are measures, and neither ours nor peers."""

    def fastest(self, row: Row, *, is_peer: bool) -> tuple[str, float] | None:
        impls = self.peers if is_peer else PRODUCTION
        speeds = {impl: self.tflops[row, impl] for impl in impls if (row, impl) in self.tflops}
        return max(speeds.items(), key=lambda item: item[1]) if speeds else None

    @cached_property
    def errors(self) -> dict[tuple[Row, str], float]:
        """(row, short name) -> relative error, of what was checked."""
        return {
            (Row.of(line["case"]), short_name(line["impl"])): line["rel_fro_error"]
            for line in self.lines
            if line["supported"] and line["rel_fro_error"] is not None
        }

    @cached_property
    def times_us(self) -> dict[tuple[Row, str], float]:
        return {
            (Row.of(line["case"]), short_name(line["impl"])): line["median_us"]
            for line in self.lines
            if line["supported"]
        }

    def production_us(self, row: Row) -> float | None:
        fastest = self.fastest(row, is_peer=False)
        return fastest and self.times_us[row, fastest[0]]


def fp8_table(path: pathlib.Path, page: str | None) -> str:
    """TFLOP/s of all, and the ratio to the best peer; with a page: of that page's kernels."""
    return results_table(path, page) if page else speeds_table(Fp8Results.read(path))


def fp8_errors_table(path: pathlib.Path) -> str:
    """Relative errors: a row a head dim and mask, the largest of all lengths."""
    results = Fp8Results.read(path)
    body = []
    for (head_dims, mask), rows in _groups(results.rows):
        cells = []
        for impl in results.impls:
            errors = [results.errors[row, impl] for row in rows if (row, impl) in results.errors]
            cells.append(percent(max(errors, default=None)))
        body.append([head_dims, mask, *cells])
    table = markdown(["head dim", "mask", *(f"`{impl}`" for impl in results.impls)], body, 2)
    what = "Per cent of the exact result's norm, the largest of all lengths."
    return f"{table}\n\n{what} {results.provenance}."


def percent(error: float | None) -> str:
    return number(error and 100 * error)


def fp8_cost_table(attention: pathlib.Path, quantizing: pathlib.Path) -> str:
    """What rotating and quantising Q, K and V takes, in per cent of the attention: a row a head dim
    and mask, a column a length."""
    results, quantizers = Fp8Results.read(attention), LinesOfRace.read(quantizing)
    costs = quantizing_us(quantizers)
    lengths = sorted({row.seqlen for row in results.rows})
    body = []
    for (head_dims, mask), rows in _groups(results.rows):
        cost = costs.get(rows[0].head_dim)
        times = {row.seqlen: results.production_us(row) for row in rows}
        shares = [cost and times.get(n) and 100 * cost / times[n] for n in lengths]
        body.append([head_dims, mask, number(cost), *map(number, shares)])
    header = ["head dim", "mask", "µs", *map(plain_length, lengths)]
    both = LinesOfRace(results.lines + quantizers.lines)
    return f"{markdown(header, body, 2)}\n\nPer cent of the attention's time. {both.provenance}."


def quantizing_us(results: LinesOfRace) -> dict[int, float]:
    """head dim -> the time of queries, keys and values, as attention's sweep has them."""
    times: dict[tuple[int, bool], float] = {}
    for line in results.lines:
        if line["supported"] and line["impl"].startswith("tilewright/"):
            case = line["case"]
            times[case["head_dim"], case["transposed"]] = line["median_us"]
    return {
        head_dim: 2 * us + times[head_dim, True]
        for (head_dim, transposed), us in times.items()
        if not transposed and (head_dim, True) in times
    }


def _groups(rows: list[Row]) -> list[tuple[tuple[str, str], list[Row]]]:
    """Of a head dim and mask."""
    groups: Any = itertools.groupby(rows, key=lambda row: (row.head_dims, row.mask))
    return [(name, list(group)) for name, group in groups]
