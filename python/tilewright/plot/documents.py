"""Tables and plots between markers:

<!-- results:attention-ladder:k3 begin --> ... <!-- results:attention-ladder:k3 end -->
"""

import os
import pathlib
import re
from collections.abc import Iterator

from tilewright.plot.gemm import gemm_table
from tilewright.plot.tables import (
    choices_table,
    library_table,
    profile_table,
    ratio_table,
    resources_table,
    results_table,
)

NAME = r"(?:results|ratio|choices|gemm|plot|profile|resources|library):[\w:.-]+"
BLOCK = re.compile(
    rf"<!-- (?P<name>{NAME}) begin -->\n(?P<table>.*?)<!-- (?P=name) end -->\n", re.DOTALL
)
NOT_YET = "Not measured yet."
MARKER = re.compile(rf"<!-- {NAME} (?:begin|end) -->")


def documents(root: pathlib.Path) -> Iterator[pathlib.Path]:
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def section(root: pathlib.Path, path: pathlib.Path, name: str) -> str:
    """What stands between the markers of that name in the document `path`."""
    kind, _, file = name.partition(":")
    if kind != "plot":
        return table(root, name)
    if not (root / "results" / f"{file}.jsonl").exists():
        return ""
    folder = os.path.relpath(root / "docs/plots", path.parent)
    return f"![{file}]({folder}/{file}.svg)"


def table(root: pathlib.Path, name: str) -> str:
    """The table of that name. Where its results are not there yet, a GEMM's says so, and there is
    nothing else.

    results:FILE[:PAGE]   results/FILE.jsonl
    ratio:FILE            the same, beside the best peer
    choices:FILE          the same, of the rows of flash's table
    gemm:FILE             a race of matrix products
    profile:PAGE          results/profiles/attention-ladder.jsonl
    resources:PAGE        tests/resources/budget.json
    library:kernels       the same, and tests/resources/library.json
    """
    kind, first, *rest = name.split(":")
    budget = root / "tests/resources/budget.json"
    profile = root / "results/profiles/attention-ladder.jsonl"
    results = root / "results" / f"{first}.jsonl"
    path, make, *arguments = {
        "results": (results, results_table, rest[0] if rest else None),
        "ratio": (results, ratio_table),
        "choices": (results, choices_table),
        "gemm": (results, gemm_table),
        "profile": (profile, profile_table, first),
        "resources": (budget, resources_table, first),
        "library": (budget, library_table, budget.with_name("library.json")),
    }[kind]
    if not path.exists():
        return NOT_YET if kind == "gemm" else ""
    return make(path, *arguments)


def rendered(root: pathlib.Path, path: pathlib.Path) -> str:
    """A document's text with every table made anew."""
    text = path.read_text()
    if len(MARKER.findall(text)) != 2 * len(BLOCK.findall(text)):
        raise SystemExit(f"{path}: a marker without its other half")

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        content = section(root, path, name)
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
