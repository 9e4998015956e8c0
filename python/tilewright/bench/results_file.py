"""A results file that grows case by case and is whole at any moment."""

import json
import os
import pathlib
import sys
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
        if self.path.exists() and not self.path.is_file():  # a pipe or a terminal
            with self.path.open("a") as stream:
                stream.write(_text_of(lines))
        else:
            _replace(self.path.resolve(), _text_of(self.lines))


def _is_same_case(line: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(line[key] == other.get(key) for key in ("operation", "case"))


def _text_of(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def _replace(path: pathlib.Path, text: str) -> None:
    """The file has its old text or the new one, whatever ends the process or the machine."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w") as file:
        if path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Lines, which are objects; the last one of a file that was written otherwise may be cut off.

    Ends the process where another one is none: it would be lost.
    """
    lines = []
    texts = path.read_bytes().split(b"\n") if path.is_file() else []
    for number, text in enumerate(texts, start=1):
        line = _parse(text)
        is_cut_off = number == len(texts) and text.startswith(b"{")
        if line is not None:
            lines.append(line)
        elif text.strip() and not is_cut_off:
            sys.exit(f"--json: {str(path)!r} line {number} is no JSON object, must be one")
    return lines


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None
