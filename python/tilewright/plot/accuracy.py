"""The errors of attention on FP8 against the number of keys: their table and plot."""

import itertools
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.plot.figures import colors_of, finish, marker_of, new_figure, plain_length
from tilewright.plot.fp8 import percent
from tilewright.plot.results import LinesOfRace, short_name
from tilewright.plot.text import markdown

SHORTEST, LONGEST = 1024, 131072
VALUES = {False: "normal", True: "with outliers"}


@dataclass(frozen=True)
class Form:
    """Of queries, keys and values."""

    outliers: bool
    rotated: bool
    descale: str

    @staticmethod
    def of(case: dict[str, Any]) -> "Form":
        return Form(case.get("outliers", False), case["rotated"], case["descale"])

    @property
    def title(self) -> str:
        return f"{'rotated, ' * self.rotated}a descale a {self.descale}"


class AccuracyResults(LinesOfRace):
    """The lines of such a race; of two of the same the last counts."""

    @cached_property
    def errors(self) -> dict[tuple[Form, str, int], float]:
        """(form, short name, keys) -> relative RMSE."""
        return {
            (Form.of(line["case"]), short_name(line["impl"]), line["case"]["kv_len"]): error
            for line in self.lines
            if (error := line.get("rel_fro_error")) is not None
        }

    @cached_property
    def forms(self) -> list[Form]:
        return list(dict.fromkeys(Form.of(line["case"]) for line in self.lines))

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({length for _, _, length in self.errors})

    def curve(self, form: Form, impl: str) -> dict[int, float]:
        """keys -> error"""
        keys = ((n, (form, impl, n)) for n in self.lengths)
        return {n: self.errors[key] for n, key in keys if key in self.errors}


def accuracy_table(path: pathlib.Path) -> str:
    """Per cent: a row a form and implementation, a column a number of keys."""
    results = AccuracyResults.read(path)
    header = ["values", "rotated", "a descale a", "kernel", *map(plain_length, results.lengths)]
    body = []
    for form, impl in itertools.product(results.forms, results.impls):
        if curve := results.curve(form, impl):
            cells = [VALUES[form.outliers], "yes" if form.rotated else "no", form.descale]
            body.append([*cells, f"`{impl}`", *(percent(curve.get(n)) for n in results.lengths)])
    table = markdown(header, body, 4)
    return f"{table}\n\nRelative RMSE, per cent. {_what(results)}{results.provenance}."


def _what(results: AccuracyResults) -> str:
    """The problem, in a sentence."""
    cases = (line["case"] for line in results.lines)
    return "".join(
        f"{sentence}. "
        for sentence in dict.fromkeys(
            f"{case['heads']} heads, head dim {case['head_dim']}, "
            f"{'causal' if case['causal'] else 'full'}; errors of "
            + (f"{case['checked_rows']} random rows" if "checked_rows" in case else "all rows")
            for case in cases
        )
    )


def plot_accuracy(results: AccuracyResults, stem: pathlib.Path) -> list[pathlib.Path]:
    """Writes STEM.png and STEM.svg: a row of panels for each kind of values, a panel a form."""
    kinds = sorted({form.outliers for form in results.forms})
    titles = list(dict.fromkeys(form.title for form in results.forms))
    figure, axes = new_figure(len(kinds), len(titles))
    for form in results.forms:
        panel = axes[kinds.index(form.outliers), titles.index(form.title)]
        panel.set_title(f"{VALUES[form.outliers]}; {form.title}", fontsize="small")
        _draw_panel(panel, results, form)
    return finish(figure, axes, ("keys", "relative RMSE, %"), results, stem)


def _draw_panel(panel: Any, results: AccuracyResults, form: Form) -> None:
    colors = colors_of(results)
    for impl in results.impls:
        if curve := results.curve(form, impl):
            errors = [100 * error for error in curve.values()]
            panel.plot(list(curve), errors, color=colors[impl], marker=marker_of(results, impl),
                       markersize=4.5, fillstyle="none", label=impl)  # fmt: skip


# ---- What goals ask for


PER_TENSOR = "k7"


def to_per_tensor(impl: str, *, outliers: bool) -> Any:
    """An error, rotated and in blocks, over K7's with a descale a tensor, at each length."""

    def values(results: AccuracyResults) -> Iterator[float | None]:
        best = results.curve(Form(outliers, True, "block"), impl)
        plain = results.curve(Form(outliers, False, "tensor"), PER_TENSOR)
        for length in results.lengths:
            both = best.get(length), plain.get(length)
            yield both[0] / both[1] if all(both) else None

    return values


def longest_to_shortest(impl: str) -> Any:
    """The error with 128k keys over that with 1k, of both kinds of values."""

    def values(results: AccuracyResults) -> Iterator[float | None]:
        for outliers in VALUES:
            curve = results.curve(Form(outliers, True, "block"), impl)
            both = curve.get(LONGEST), curve.get(SHORTEST)
            yield both[0] / both[1] if all(both) else None

    return values
