"""Results files, as the tables and plots want them."""

import json
import pathlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any


def short_name(impl: str) -> str:
    return impl.removeprefix("tilewright/")


@dataclass(frozen=True)
class Row:
    """One case of a table or one point of a curve's x axis."""

    head_dim: int
    causal: bool
    seqlen: int
    dtype: str


@dataclass(frozen=True)
class Results:
    """The lines of one attention results file, in its order; of two of the same the last counts."""

    lines: list[dict[str, Any]]

    @staticmethod
    def read(path: pathlib.Path) -> "Results":
        text = path.read_text()
        return Results([json.loads(line) for line in text.splitlines() if line.strip()])

    @cached_property
    def impls(self) -> list[str]:
        """Ours in the order of the ladder, which is the file's, then the peers; short names."""
        impls = dict.fromkeys(line["impl"] for line in self.lines)
        ours = [impl for impl in impls if impl.startswith("tilewright/")]
        return [short_name(impl) for impl in ours + [impl for impl in impls if impl not in ours]]

    @cached_property
    def tflops(self) -> dict[tuple[Row, str], float]:
        """(row, short name) -> TFLOP/s, of what could run."""
        return {
            (self._row(line), short_name(line["impl"])): line["tflops"]
            for line in self.lines
            if line["supported"]
        }

    @cached_property
    def rows(self) -> list[Row]:
        rows = {self._row(line) for line in self.lines}
        return sorted(rows, key=lambda row: (row.dtype, row.head_dim, row.causal, row.seqlen))

    @staticmethod
    def _row(line: dict[str, Any]) -> Row:
        case = line["case"]
        return Row(case["head_dim"], case["causal"], case["q_len"], case["dtype"])

    def rung(self, page: str) -> list[str]:
        """The kernels of a worklog page ("k3": k3_1, k3_2, k3_3), after the one they build on."""
        own = [impl for impl in self.impls if impl == page or impl.startswith(page + "_")]
        if not own:
            return []
        first = self.impls.index(own[0])
        return self.impls[max(0, first - 1) : first] + own

    @cached_property
    def provenance(self) -> str:
        """Machine and runs, in a line."""
        machines = dict.fromkeys(
            line["gpu"]
            + (f", driver {line['driver']}" if line["driver"] else "")
            + (f", CUDA {line['cuda']}" if line["cuda"] else "")
            for line in self.lines
        )
        runs = dict.fromkeys(line["run"] for line in self.lines)
        return f"{'; '.join(machines)}; run {', '.join(runs)}"
