"""A results file that grows case by case and is whole at any moment."""

import json
import os
import pathlib
from typing import Any


class ResultsFile:
    """Writes a case's lines all at once: a new file takes the old one's name. So a run that is
    killed leaves whole cases, and one that fails before its first case leaves the file as it was.

    append  the lines that are there stay
    resume  they stay, too, and a case that is raced again takes the place of its former lines
    """

    def __init__(self, path: pathlib.Path, append: bool, resume: bool):
        self.path = path
        self.resume = resume
        self.lines = _read(path) if append or resume else []

    def find(self, identity: dict[str, Any]) -> dict[str, Any] | None:
        """The line of this case by the same implementation, version and device."""
        for line in self.lines:
            if all(line.get(key) == value for key, value in identity.items()):
                return line
        return None

    def put(self, lines: list[dict[str, Any]]) -> None:
        """All lines of one case, or none."""
        place = len(self.lines)
        if self.resume and lines:
            former = [i for i, there in enumerate(self.lines) if _is_same_case(lines[0], there)]
            place = min(former, default=place)
            self.lines = [there for i, there in enumerate(self.lines) if i not in former]
        self.lines[place:place] = lines
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        os.replace(new, self.path)


def _is_same_case(line: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(line[key] == other.get(key) for key in ("operation", "case"))


def _read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Lines that are objects; the last one of a file that was written otherwise may be cut off."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines
