"""Bounds on what races show, each on one number."""

import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.plot.goals import Bound
from tilewright.plot.results import LinesOfRace
from tilewright.plot.text import markdown


@dataclass(frozen=True)
class RaceGoal:
    """A bound on one number, which is made of values of one race."""

    results: type[LinesOfRace]
    name: str
    race: str  # its results file
    bound: Bound
    values: Callable[[Any], Iterator[float | None]]  # of such results
    number: Callable[[list[float]], float]

    def cells(self, folder: pathlib.Path) -> list[str]:
        path = folder / f"{self.race}.jsonl"
        values = self.values(self.results.read(path)) if path.exists() else []
        known = [value for value in values if value is not None]
        cells = [self.name, f"`{self.race}`", str(len(known))]
        return cells + self.bound.cells(self.number(known) if known else None)


def race_goals_table(folder: pathlib.Path, goals: list[RaceGoal]) -> str:
    """A row a goal: in which race, of how many cases, what is asked for, what is reached."""
    header = ["", "race", "cases", "goal", "reached", "met"]
    return markdown(header, [goal.cells(folder) for goal in goals], 2)
