"""Tables and plots between markers:

<!-- results:attention-ladder:k3 begin --> ... <!-- results:attention-ladder:k3 end -->
"""

import os
import pathlib
import re
from collections.abc import Iterator

from tilewright.plot import decode_goals, dsv4_goals, fp8_goals
from tilewright.plot.accumulator import accumulator_table, promotion_table
from tilewright.plot.accuracy import accuracy_table
from tilewright.plot.decode import decode_table
from tilewright.plot.dsv4 import dsv4_table
from tilewright.plot.fp8 import fp8_cost_table, fp8_errors_table, fp8_table
from tilewright.plot.gemm import gemm_configs_table, gemm_table
from tilewright.plot.goals import goals_table
from tilewright.plot.headline import headline_caption, plot_headline
from tilewright.plot.ladder import ladder_table
from tilewright.plot.quantize import copies_table, quantize_table
from tilewright.plot.race_goals import race_goals_table
from tilewright.plot.tables import (
    behind_table,
    configs_table,
    counters_table,
    peers_table,
    profile_table,
    ratio_table,
    resources_table,
    results_table,
)

PLOTS = "docs/plots"
NAME = (
    r"(?:results|ratio|peers|behind|configs|gemm-configs|gemm|goals|decode-goals|decode|dsv4-goals"
    r"|dsv4|fp8-goals|fp8-errors|fp8-cost|fp8|accuracy|copies|quantize|plot|profile|counters"
    r"|resources|headline|ladder|accumulator|promotion):[\w:.,-]+"
)
BLOCK = re.compile(
    rf"<!-- (?P<name>{NAME}) begin -->\n(?P<table>.*?)<!-- (?P=name) end -->\n", re.DOTALL
)
MARKER = re.compile(rf"<!-- {NAME} (?:begin|end) -->")
# Of these a line says that the results are not there yet.
SAID_TO_BE_MISSING = ("accumulator", "accuracy", "copies", "counters", "decode", "dsv4", "fp8",
                      "fp8-cost", "fp8-errors", "gemm", "ladder", "ratio")  # fmt: skip
# Goals of several races.
GOALS = {
    "decode-goals": decode_goals.GOALS,
    "dsv4-goals": dsv4_goals.GOALS,
    "fp8-goals": fp8_goals.GOALS,
}


def documents(root: pathlib.Path) -> Iterator[pathlib.Path]:
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def section(root: pathlib.Path, path: pathlib.Path, name: str) -> str:
    """What stands between the markers of that name in the document `path`.

    plot:FILE             the plot of results/FILE.jsonl
    headline:FILE,FILE    the figure of an attention race and a GEMM race, and its caption
    """
    kind, _, files = name.partition(":")
    if kind not in ("plot", "headline"):
        return table(root, name)
    races = races_of(root, files)
    if not races:
        return ""
    file = files if kind == "plot" else kind
    image = f"![{file}]({os.path.relpath(root / PLOTS, path.parent)}/{file}.svg)"
    return image if kind == "plot" else f"{image}\n\n{headline_caption(races)}"


def races_of(root: pathlib.Path, files: str) -> list[pathlib.Path]:
    """The results files of a list with commas; none where one is not there yet."""
    races = [root / "results" / f"{file}.jsonl" for file in files.split(",")]
    return races if all(race.exists() for race in races) else []


def plot_headlines(root: pathlib.Path) -> list[pathlib.Path]:
    """Draws the figure that a document has between headline markers."""
    texts = [path.read_text() for path in documents(root)]
    names = [match["name"] for text in texts for match in BLOCK.finditer(text)]
    headlines = {name.removeprefix("headline:") for name in names if name.startswith("headline:")}
    paths = []
    for races in filter(None, (races_of(root, files) for files in sorted(headlines))):
        paths += plot_headline(races, root / PLOTS / "headline")
    return paths


def table(root: pathlib.Path, name: str) -> str:
    """The table of that name; nothing, or a line that says so, where its results are not there yet.

    results:FILE[:PAGE]   results/FILE.jsonl
    ratio:FILE            the same, beside the best peer
    ladder:FILE           the ladder's kernels on one case, each beside the one before
    peers:FILE[:FILE...]  how these stand to the best peer
    behind:FILE[:FILE...] their cases in which a peer is ahead
    configs:FILE          results/FILE.jsonl, of flash's variants
    gemm:FILE             a race of GEMMs
    goals:FILE            what such a race was to show, and does
    decode:FILE           a race of attention over KV caches
    dsv4:FILE             a race of DeepSeek-V4's attention
    fp8:FILE[:PAGE]       a race of attention on FP8
    fp8-errors:FILE       its errors
    fp8-cost:FILE:FILE    what quantising takes beside it, by a race of rotate_quantize
    accuracy:FILE         the errors of attention on FP8 against the number of keys
    decode-goals:FOLDER, dsv4-goals:FOLDER, fp8-goals:FOLDER
                          what the races of these, of files of FOLDER, were to show, and do
    gemm-configs:FILE     results/FILE.jsonl, of nvfp4's variants
    quantize:FILE         the NVFP4 quantiser beside a copy
    copies:FILE           another operation beside a copy
    accumulator:FILE      how many bits the tensor cores keep while they add
    promotion:FILE        what sums in them lose between promotions
    profile:PAGE          results/profiles/attention-ladder.jsonl
    counters:FILE         results/profiles/FILE.jsonl
    resources:PAGE        tests/resources/kernels/PAGE.json, and PAGE_*.json
    """
    kind, first, *rest = name.split(":")
    if kind in ("peers", "behind"):
        races = [root / "results" / f"{race}.jsonl" for race in (first, *rest)]
        races = [race for race in races if race.exists()]
        return (peers_table if kind == "peers" else behind_table)(races) if races else ""
    profiles = root / "results/profiles"
    results, *others = (root / "results" / f"{file}.jsonl" for file in (first, *rest))
    path, make, *arguments = {
        "results": (results, results_table, rest[0] if rest else None),
        "ratio": (results, ratio_table),
        "ladder": (results, ladder_table),
        "configs": (results, configs_table),
        "gemm": (results, gemm_table),
        "goals": (results, goals_table),
        "decode": (results, decode_table),
        "dsv4": (results, dsv4_table),
        "fp8": (results, fp8_table, rest[0] if rest else None),
        "fp8-errors": (results, fp8_errors_table),
        "fp8-cost": (results, fp8_cost_table, *others),
        "accuracy": (results, accuracy_table),
        **{name: (root / first, race_goals_table, goals) for name, goals in GOALS.items()},
        "copies": (results, copies_table),
        "gemm-configs": (results, gemm_configs_table),
        "quantize": (results, quantize_table),
        "accumulator": (results, accumulator_table),
        "promotion": (results, promotion_table),
        "profile": (profiles / "attention-ladder.jsonl", profile_table, first),
        "counters": (profiles / f"{first}.jsonl", counters_table),
        "resources": (root / "tests/resources/kernels", resources_table, first),
    }[kind]
    if not all(each.exists() for each in (path, *arguments) if isinstance(each, pathlib.Path)):
        return "Not measured yet." if kind in SAID_TO_BE_MISSING else ""
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
