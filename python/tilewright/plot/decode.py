"""Attention over KV caches: the table of a race, and its roofline plot."""

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.bench.peers import PLAIN_READ
from tilewright.plot.figures import colors_of, finish, marker_of, new_figure, set_logarithmic
from tilewright.plot.results import LinesOfRace, short_name
from tilewright.plot.text import markdown, number, ratio

PREFIX = "a prefix of "  # keys: how the word for a shared one begins
DENSE = "attention"  # of keys that lie in no cache
APART = "apart"  # a packed batch in several calls
MEASURES = (PLAIN_READ, DENSE, APART)  # of ours, not some of them


@dataclass(frozen=True)
class KvCache:
    """One case."""

    dtype: str
    cache_dtype: str
    page_size: int
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    batch: int
    q_len: int  # new tokens; where sequences have different numbers, of all together
    kv_len: int  # keys, of the longest
    q_lens: tuple[int, ...] = ()
    kv_lens: tuple[int, ...] = ()
    features: tuple[str, ...] = ()  # those that are on, in words
    batch_invariant: bool = False
    names_prefix: bool = False

    @staticmethod
    def of(case: dict[str, Any]) -> "KvCache":
        names = ("dtype", "cache_dtype", "page_size", "heads", "kv_heads", "head_dim", "v_dim")
        return KvCache(
            *(case[name] for name in (*names, "batch", "q_len", "kv_len")),
            q_lens=tuple(case.get("q_lens", ())),
            kv_lens=tuple(case.get("kv_lens", ())),
            features=tuple(_features(case)),
            batch_invariant=case.get("batch_invariant", False),
            names_prefix=case.get("names_prefix", False),
        )

    @property
    def cells(self) -> list[str]:
        dims = f"{self.head_dim}" + ("" if self.v_dim == self.head_dim else f" (V {self.v_dim})")
        new = _range(self.q_lens) or str(self.q_len)
        keys = _range(self.kv_lens) or str(self.kv_len)
        return [f"{self.heads}, {self.kv_heads}", dims, str(self.batch), new, keys, self.cache]

    @property
    def cache(self) -> str:
        pages = [f"pages of {self.page_size}"] if self.page_size else []
        queries = ["queries too"] * (self.dtype == self.cache_dtype == "e4m3")
        invariant = ["batch-invariant"] * self.batch_invariant
        named = ["named"] * self.names_prefix
        return ", ".join([self.cache_dtype, *queries, *pages, *self.features, *named, *invariant])


HEADER = ["heads of Q, K", "head dim", "batch", "new tokens", "keys", "cache"]


def _range(lengths: tuple[int, ...]) -> str:
    return f"{min(lengths)} to {max(lengths)}" if lengths else ""


def _features(case: dict[str, Any]) -> list[str]:
    words = {
        "window": lambda window: f"window {window[0]}",
        "softcap": lambda cap: f"cap {cap:g}",
        "sinks": lambda _: "sinks",
        "descale": lambda of: f"a descale a {of}",
        "shared_prefix": lambda keys: f"{PREFIX}{keys}",
    }
    return [word(case[name]) for name, word in words.items() if name in case]


class TimesOfRace(LinesOfRace):
    """The times of one results file, in its order; of two lines of the same the last counts. A case
    is what `case_of` makes of a line's, with `cells` of a table."""

    case_of: Callable[[dict[str, Any]], Any]
    header: Sequence[str]  # of the cells

    @cached_property
    def times_us(self) -> dict[tuple[Any, str], float]:
        """(case, short name) -> median, for all that could run."""
        return {
            (self.case_of(line["case"]), short_name(line["impl"])): line["median_us"]
            for line in self.lines
            if line["supported"]
        }

    @cached_property
    def bytes_of(self) -> dict[Any, float]:
        """What must be moved at least, of each case that something could run."""
        return {
            self.case_of(line["case"]): line["gbps"] * line["median_us"] * 1e3
            for line in self.lines
            if line["supported"]
        }

    @cached_property
    def cases(self) -> list[Any]:
        return list(dict.fromkeys(self.case_of(line["case"]) for line in self.lines))

    @property
    def peers(self) -> list[str]:
        return [impl for impl in super().peers if impl != PLAIN_READ]

    @property
    def ours(self) -> list[str]:
        others = [*self.peers, *MEASURES]
        return [impl for impl in self.impls if impl not in others]

    def best_us(self, case: Any, impls: list[str]) -> float | None:
        times = [self.times_us.get((case, impl)) for impl in impls]
        return min((time for time in times if time), default=None)

    def ours_us(self, case: Any) -> float | None:
        return self.best_us(case, self.ours)

    def speed_beside(self, case: Any, impls: list[str]) -> float | None:
        """The time of the fastest of these over that of the fastest of ours, where both ran."""
        ours, theirs = self.ours_us(case), self.best_us(case, impls)
        return theirs / ours if ours and theirs else None

    def to_best_peer(self, case: Any) -> float | None:
        return self.speed_beside(case, self.peers)

    def to_plain_read(self, case: Any) -> float | None:
        return self.speed_beside(case, [PLAIN_READ])


class DecodeResults(TimesOfRace):
    """Of attention over KV caches."""

    case_of = staticmethod(KvCache.of)
    header = HEADER


def decode_table(path: pathlib.Path) -> str:
    return times_table(DecodeResults.read(path))


def times_table(results: TimesOfRace) -> str:
    """µs: a row a case, a column an implementation, and how ours stands to the best peer and to a
    plain read of as many bytes."""
    impls = [
        i for i in results.impls if any((case, i) in results.times_us for case in results.cases)
    ]
    beside: dict[str, Callable[[Any], float | None]] = {}
    if results.peers:
        beside["to best peer"] = results.to_best_peer
    if PLAIN_READ in impls:
        beside["to plain read"] = results.to_plain_read
    body = [
        [
            *case.cells,
            *(number(results.times_us.get((case, impl))) for impl in impls),
            *(ratio(of_case(case)) for of_case in beside.values()),
        ]
        for case in results.cases
    ]
    table = markdown([*results.header, *(f"`{impl}`" for impl in impls), *beside], body)
    return f"{table}\n\nµs, medians. {results.provenance}."


def plot_decode(results: DecodeResults, stem: pathlib.Path) -> list[pathlib.Path]:
    """Writes STEM.png and STEM.svg: bytes a second against bytes, a panel for each number of KV
    heads; cases of a batch size are joined by a line, and so is the plain read, the roof."""
    kv_heads = list(dict.fromkeys(case.kv_heads for case in results.cases))
    figure, axes = new_figure(1, len(kv_heads))
    for panel, count in zip(axes[0], kv_heads, strict=True):
        cases = [case for case in results.cases if case.kv_heads == count]
        _draw_panel(panel, results, sorted(cases, key=lambda case: results.bytes_of.get(case, 0)))
        panel.set_title(f"{cases[0].heads} query heads, {count} of K and V", fontsize="medium")
    labels = ("MB of K, V, Q and O", "GB/s")
    return finish(figure, axes, labels, results, stem, scale=set_logarithmic)


def _draw_panel(panel: Any, results: DecodeResults, cases: list[KvCache]) -> None:
    colors = colors_of(results) | {PLAIN_READ: "black"}
    for impl in results.impls:
        points = {c: results.times_us[c, impl] for c in cases if (c, impl) in results.times_us}
        style = {"color": colors[impl], "marker": marker_of(results, impl), "markersize": 4.5}
        if impl == PLAIN_READ:
            groups = [list(points)]
            style |= {"marker": "", "linewidth": 1}
        else:
            groups = [
                [c for c in points if c.batch == b] for b in sorted({c.batch for c in points})
            ]
        for i, group in enumerate(filter(None, groups)):
            bytes_ = [results.bytes_of[case] for case in group]
            speeds = [size / points[case] * 1e-3 for size, case in zip(bytes_, group, strict=True)]
            panel.plot([size * 1e-6 for size in bytes_], speeds, fillstyle="none", alpha=0.8,
                       label=impl if i == 0 else None, **{"linewidth": 0.6} | style)  # fmt: skip
