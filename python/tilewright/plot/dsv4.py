"""DeepSeek-V4's attention: the table of a race, and its plot."""

import pathlib
from dataclasses import dataclass
from typing import Any

from tilewright.bench.peers import PLAIN_READ
from tilewright.plot.decode import TimesOfRace, times_table
from tilewright.plot.figures import colors_of, finish, marker_of, new_figure

FLASH = (128, 512)  # keys of the window, and compressed ones
PRO = (128, 1024)
LATENT = (128, 8192)  # heavily compressed attention at a context of 1M


@dataclass(frozen=True)
class Dsv4Problem:
    """One case."""

    heads: int
    window: int
    compressed: int
    compressed_keys: str
    rows: tuple[str, ...]  # of the window's cache and the compressed one, once where alike
    batch: int
    q_len: int
    inverse_rope: bool

    @staticmethod
    def of(case: dict[str, Any]) -> "Dsv4Problem":
        formats = (case.get(f"{scope}_rows") for scope in ("window", "compressed"))
        return Dsv4Problem(
            case["heads"],
            case["window"],
            case["compressed"],
            case.get("compressed_keys", ""),
            tuple(dict.fromkeys(filter(None, formats))),
            case["batch"],
            case["q_len"],
            case["inverse_rope"],
        )

    @property
    def keys(self) -> tuple[int, int]:
        return self.window, self.compressed

    @property
    def cells(self) -> list[str]:
        keys = f"{self.window} + {self.compressed}"
        if self.compressed_keys == "range":
            keys += " (range)"
        rope = ", inverse RoPE" * self.inverse_rope
        rows = f"{', '.join(self.rows)}{rope}"
        return [str(self.heads), keys, rows, str(self.batch), str(self.q_len)]


class Dsv4Results(TimesOfRace):
    case_of = staticmethod(Dsv4Problem.of)
    header = ("heads", "keys", "rows", "batch", "new tokens")


def dsv4_table(path: pathlib.Path) -> str:
    return times_table(Dsv4Results.read(path))


def plot_dsv4(results: Dsv4Results, stem: pathlib.Path) -> list[pathlib.Path]:
    """Writes STEM.png and STEM.svg: times against the batch, a panel for each number of heads, of
    one new token a request of Flash's keys in FlashMLA's rows."""
    cases = [case for case in results.cases if _is_drawn(case)]
    heads = sorted({case.heads for case in cases})
    figure, axes = new_figure(1, len(heads))
    for panel, count in zip(axes[0], heads, strict=True):
        of_heads = [case for case in cases if case.heads == count]
        _draw_panel(panel, results, sorted(of_heads, key=lambda case: case.batch))
        panel.set_title(f"{count} heads", fontsize="medium")
    return finish(figure, axes, ("requests", "µs"), results, stem)


def _is_drawn(case: Dsv4Problem) -> bool:
    is_plain = case.rows == ("e4m3_bf16",) and not case.inverse_rope
    return is_plain and case.keys == FLASH and case.q_len == 1


def _draw_panel(panel: Any, results: Dsv4Results, cases: list[Dsv4Problem]) -> None:
    colors = colors_of(results) | {PLAIN_READ: "black"}
    for impl in results.impls:
        points = [
            (c.batch, results.times_us[c, impl]) for c in cases if (c, impl) in results.times_us
        ]
        if points:
            marker = "" if impl == PLAIN_READ else marker_of(results, impl)
            panel.plot(*zip(*points, strict=True), color=colors[impl], marker=marker,
                       markersize=4.5, fillstyle="none", label=impl)  # fmt: skip
