"""Tables between markers: <!-- results:attention-ladder:k3 begin --> ... <!-- ... end -->."""

import pathlib
import re
from collections.abc import Iterator

from tilewright.plot.tables import profile_table, resources_table, results_table

BLOCK = re.compile(
    r"<!-- (?P<name>(?:results|profile|resources):[\w:.-]+) begin -->\n"
    r"(?P<table>.*?)"
    r"<!-- (?P=name) end -->\n",
    re.DOTALL,
)
MARKER = re.compile(r"<!-- (?:results|profile|resources):[\w:.-]+ (?:begin|end) -->")


def documents(root: pathlib.Path) -> Iterator[pathlib.Path]:
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def table(root: pathlib.Path, name: str) -> str:
    """The table of that name; nothing where its results are not there yet.

    results:FILE[:PAGE]   results/FILE.jsonl
    profile:PAGE          results/profiles/attention-ladder.jsonl
    resources:PAGE        tests/resources/budget.json
    """
    kind, first, *rest = name.split(":")
    page = rest[0] if rest else None
    if kind == "results":
        path, make = root / "results" / f"{first}.jsonl", results_table
    elif kind == "profile":
        path, make, page = root / "results/profiles/attention-ladder.jsonl", profile_table, first
    else:
        path, make, page = root / "tests/resources/budget.json", resources_table, first
    return make(path, page) if path.exists() else ""


def rendered(root: pathlib.Path, path: pathlib.Path) -> str:
    """A document's text with every table made anew."""
    text = path.read_text()
    if len(MARKER.findall(text)) != 2 * len(BLOCK.findall(text)):
        raise SystemExit(f"{path}: a marker without its other half")

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        content = table(root, name)
        content = f"\n{content}\n\n" if content else ""
        return f"<!-- {name} begin -->\n{content}<!-- {name} end -->\n"

    return BLOCK.sub(block, text)


def outdated(root: pathlib.Path) -> list[pathlib.Path]:
    """Documents whose tables differ from what the results give."""
    return [path for path in documents(root) if rendered(root, path) != path.read_text()]


def update(root: pathlib.Path) -> list[pathlib.Path]:
    """Writes all tables; the documents that changed."""
    changed = outdated(root)
    for path in changed:
        path.write_text(rendered(root, path))
    return changed
