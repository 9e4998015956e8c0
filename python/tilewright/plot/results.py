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

    dtype: str
    head_dim: int
    v_dim: int
    heads: int
    kv_heads: int
    causal: bool
    batch: int
    seqlen: int  # of queries; packed: of all sequences together
    kv_len: int  # of keys, likewise
    lengths: tuple[int, ...]  # of packed sequences
    window: tuple[int | None, ...]  # (left, right), or nothing
    softcap: float
    sinks: bool

    @staticmethod
    def of(case: dict[str, Any]) -> "Row":
        names = ("dtype", "head_dim", "v_dim", "heads", "kv_heads", "causal", "batch", "q_len")
        return Row(
            *(case[name] for name in (*names, "kv_len")),
            lengths=tuple(case.get("lengths", ())),
            window=tuple(case.get("window", ())),
            softcap=case.get("softcap", 0.0),
            sinks=case.get("sinks", False),
        )

    @property
    def place(self) -> tuple[Any, ...]:
        """Where it stands in a table; of those that stand alike, the file's first comes first."""
        shape = (self.dtype, self.head_dim, -self.v_dim, -self.heads, self.causal)
        return (*shape, self.kv_len, self.seqlen, -self.kv_heads)

    @property
    def head_dims(self) -> str:
        return f"{self.head_dim}" + ("" if self.v_dim == self.head_dim else f" (V {self.v_dim})")

    @property
    def mask(self) -> str:
        parts = ["causal" if self.causal else "full"]
        if self.window:
            sides = self.window[:1] if self.causal else dict.fromkeys(self.window)
            widths = ("all" if side is None else str(side) for side in sides)
            parts.append(f"window {' and '.join(widths)}")
        parts += [f"cap {self.softcap:g}"] * (self.softcap > 0) + ["sinks"] * self.sinks
        return ", ".join(parts)

    @property
    def length(self) -> str:
        if self.lengths:
            ends = dict.fromkeys((min(self.lengths), max(self.lengths)))
            return f"{self.batch} of {' to '.join(map(str, ends))}"
        if self.kv_len == self.seqlen:
            return str(self.seqlen)
        return f"{self.batch} of {self.seqlen}, keys {self.kv_len}"


@dataclass(frozen=True)
class LinesOfRace:
    """The lines of one results file, in its order."""

    lines: list[dict[str, Any]]

    @classmethod
    def read(cls, path: pathlib.Path) -> "LinesOfRace":
        text = path.read_text()
        return cls([json.loads(line) for line in text.splitlines() if line.strip()])

    @cached_property
    def impls(self) -> list[str]:
        """Ours in the order of the ladder, which is the file's, then the peers; short names."""
        impls = dict.fromkeys(line["impl"] for line in self.lines)
        ours = [impl for impl in impls if impl.startswith("tilewright/")]
        return [short_name(impl) for impl in ours + [impl for impl in impls if impl not in ours]]

    @property
    def peers(self) -> list[str]:
        ours = {line["impl"] for line in self.lines if line["impl"].startswith("tilewright/")}
        return [impl for impl in self.impls if f"tilewright/{impl}" not in ours]

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


class Results(LinesOfRace):
    """The lines of one attention results file; of two of the same the last counts."""

    @cached_property
    def tflops(self) -> dict[tuple[Row, str], float]:
        """(row, short name) -> TFLOP/s, of what could run."""
        return {
            (Row.of(line["case"]), short_name(line["impl"])): line["tflops"]
            for line in self.lines
            if line["supported"]
        }

    @cached_property
    def rows(self) -> list[Row]:
        rows = dict.fromkeys(Row.of(line["case"]) for line in self.lines)
        return sorted(rows, key=lambda row: row.place)

    def fastest(self, row: Row, *, is_peer: bool) -> tuple[str, float] | None:
        """The fastest peer, or the fastest of ours, that ran this, and its TFLOP/s."""
        speeds = {
            impl: self.tflops[row, impl]
            for impl in self.impls
            if (impl in self.peers) == is_peer and (row, impl) in self.tflops
        }
        return max(speeds.items(), key=lambda item: item[1]) if speeds else None

    def to_best_peer(self, row: Row) -> float | None:
        """The fastest of ours over the fastest peer, where both ran."""
        ours, peer = (self.fastest(row, is_peer=is_peer) for is_peer in (False, True))
        return ours[1] / peer[1] if ours and peer else None

    def rung(self, page: str) -> list[str]:
        """The kernels of a worklog page ("k3": k3_1, k3_2, k3_3), after the one they build on."""
        own = [impl for impl in self.impls if impl == page or impl.startswith(page + "_")]
        if not own:
            return []
        first = self.impls.index(own[0])
        return self.impls[max(0, first - 1) : first] + own
