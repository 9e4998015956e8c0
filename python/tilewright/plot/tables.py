"""Markdown tables: of results, of profiles, of the resources that kernels take."""

import itertools
import json
import math
import pathlib
from collections.abc import Iterator
from statistics import geometric_mean
from typing import Any

from tilewright.plot.gemm import ACTIVATIONS
from tilewright.plot.results import Results, Row, short_name
from tilewright.plot.text import markdown, number, ratio

MOST_CASES = 8  # side by side in a table of counters

# A profile's counters: key of its lines -> what the table says of it.
COUNTERS = {
    "duration_us": "duration, µs",
    "tensor_pct": "tensor pipe, %",
    "fma_pct": "FMA pipe, %",
    "alu_pct": "ALU pipe, %",
    "mufu_pct": "special functions, %",
    "issue_pct": "issue slots, %",
    "smem_pct": "L1 and shared memory, %",
    "smem_lsu_pct": "shared memory, by warps, %",
    "bank_reads_pct": "L1 and shared memory, bank reads, %",
    "bank_writes_pct": "L1 and shared memory, bank writes, %",
    "gmma_instructions": "WGMMA instructions",
    "tma_pct": "TMA pipe, %",
    "l2_pct": "L2, %",
    "l2_hit_pct": "L2 hits, %",
    "dram_pct": "DRAM, %",
    "dram_bytes": "DRAM, bytes",
    "sm_clock_ghz": "SM clock, GHz",
    "warps_per_scheduler": "warps a scheduler",
    "eligible_warps": "eligible warps",
    "stall_barrier": "stalled on: barrier",
    "stall_gmma": "WGMMA",
    "stall_long_scoreboard": "global memory, TMA barrier",
    "stall_short_scoreboard": "shared memory",
    "stall_wait": "fixed latency",
    "stall_math": "math pipe",
    "stall_lg_throttle": "global-memory queue",
    "stall_mio_throttle": "shared-memory queue",
    "stall_sleeping": "sleep",
    "stall_no_instruction": "instruction fetch",
    "stall_dispatch": "dispatch",
    "stall_not_selected": "another warp's turn",
}


def results_table(path: pathlib.Path, page: str | None) -> str:
    """TFLOP/s: a row a case, a column an implementation (with a page: that page's kernels)."""
    results = Results.read(path)
    impls = results.rung(page) if page else results.impls
    header = ["head dim", "mask", "length", *(f"`{impl}`" for impl in impls)]
    body = []
    for row in results.rows:
        measured = [results.tflops.get((row, impl)) for impl in impls]
        if any(measured):
            body.append([row.head_dims, row.mask, row.length, *map(number, measured)])
    return f"{markdown(header, body, 2)}\n\nTFLOP/s, medians. {results.provenance}."


def ratio_table(path: pathlib.Path) -> str:
    return speeds_table(Results.read(path))


def speeds_table(results: Results) -> str:
    """The same with heads, where keys and values have fewer, and the ratio to the best peer."""
    has_groups = any(row.heads != row.kv_heads for row in results.rows)
    header = ["head dim", "mask", "length"] + ["heads of Q, K"] * has_groups
    header += [*(f"`{impl}`" for impl in results.impls), "to best peer"]
    body = [
        [row.head_dims, row.mask, row.length]
        + [f"{row.heads}, {row.kv_heads}"] * has_groups
        + [number(results.tflops.get((row, impl))) for impl in results.impls]
        + [ratio(results.to_best_peer(row))]
        for row in results.rows
    ]
    return f"{markdown(header, body, 2)}\n\nTFLOP/s, medians. {results.provenance}."


def peers_table(paths: list[pathlib.Path]) -> str:
    """How each race stands to the best peer, a row a file."""
    header = ["race", "cases", "geometric mean", "least", "most", "cases below 1"]
    body = []
    for path in paths:
        results = Results.read(path)
        ratios = [r for row in results.rows if (r := results.to_best_peer(row))]
        numbers = [geometric_mean(ratios), min(ratios), max(ratios)] if ratios else [None] * 3
        below = sum(r < 1 for r in ratios)
        body.append([f"`{path.stem}`", str(len(ratios)), *map(ratio, numbers), str(below)])
    return f"{markdown(header, body)}\n\nOurs to the best peer, by medians."


def behind_table(paths: list[pathlib.Path]) -> str:
    """Every case in which a peer is ahead, of several races, those of a head dim together."""
    header = ["head dim", "mask", "length", "heads of Q, K", "race"]
    header += ["ours", "best peer", "", "to best peer"]
    found = []
    for path in paths:
        results = Results.read(path)
        for row in results.rows:
            to_best = results.to_best_peer(row)
            if to_best and to_best < 1:
                _, ours = results.fastest(row, is_peer=False)
                peer, theirs = results.fastest(row, is_peer=True)
                cells = [row.head_dims, row.mask, row.length, f"{row.heads}, {row.kv_heads}"]
                cells += [f"`{path.stem}`", number(ours), number(theirs), f"`{peer}`"]
                found.append((row, [*cells, ratio(to_best)]))
    found.sort(key=lambda entry: (entry[0].head_dim, -entry[0].v_dim, entry[0].causal))
    lines = [line for path in paths for line in Results.read(path).lines]
    table = markdown(header, [cells for _, cells in found], 2)
    return f"{table}\n\nTFLOP/s, medians. {Results(lines).provenance}."


def configs_table(path: pathlib.Path) -> str:
    """TFLOP/s of flash's variants, in the file's order, a table for each head dim. The one
    that the plan takes is in bold."""
    from tilewright._kernels import flash_variant_of  # the compiled plan

    results = Results.read(path)
    chosen = {Row.of(line["case"]): flash_variant_of(line["case"]) for line in results.lines}
    tables = []
    by_head_dims = sorted(chosen, key=lambda row: (row.head_dim, -row.v_dim))
    for _, group in itertools.groupby(by_head_dims, key=lambda row: row.head_dims):
        rows = list(group)
        impls = [i for i in results.impls if any((row, i) in results.tflops for row in rows)]
        header = ["head dim", "mask", "heads", "batch", "length", *(f"`{impl}`" for impl in impls)]
        body = []
        for row in rows:
            cells = [number(results.tflops.get((row, impl))) for impl in impls]
            cells = [
                f"**{cell}**" if impl == chosen[row] else cell
                for impl, cell in zip(impls, cells, strict=True)
            ]
            case = [row.head_dims, row.mask, str(row.heads), str(row.batch), row.length]
            body.append(case + cells)
        tables.append(markdown(header, body, 2))
    return "\n\n".join([*tables, f"TFLOP/s, medians. {results.provenance}."])


def _describe(case: dict[str, Any]) -> str:
    return (
        f"{case['dtype']}, batch {case['batch']}, {case['heads']} heads, {case['q_len']} queries, "
        f"{case['kv_len']} keys, head dim {case['head_dim']}, "
        f"{'causal' if case['causal'] else 'full'}"
    )


def profile_table(path: pathlib.Path, page: str | None) -> str:
    """Nsight Compute's counters: a row a counter, a column a launch."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if page:
        rung = Results(lines).rung(page)
        lines = [line for line in lines if short_name(line["impl"]) in rung]
    header = [""]
    for line in lines:
        impl = short_name(line["impl"])
        launch = line["launch"].partition("<")[0].removeprefix("void ").rpartition("::")[2]
        header.append(f"`{impl}`" if launch.startswith("k") else f"`{impl}` {launch}")
    body = counter_rows(lines)
    cases = dict.fromkeys(_describe(line["case"]) for line in lines)
    runs = dict.fromkeys(line["run"] for line in lines)
    return f"{markdown(header, body)}\n\n{'; '.join(cases)}; run {', '.join(runs)}."


def counters_table(path: pathlib.Path) -> str:
    """The same of one kernel on several cases: a column a case, in tables of about as many each."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    tables = []
    for part in _parts(lines, MOST_CASES):
        header = ["", *(_case_name(line["case"]) for line in part)]
        tables.append(markdown(header, counter_rows(part)))
    runs = dict.fromkeys(line["run"] for line in lines)
    return "\n\n".join([*tables, f"Run {', '.join(runs)}."])


def _parts(lines: list[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    """Cut into as few parts as can be, of at most so many."""
    count = math.ceil(len(lines) / most)
    size = math.ceil(len(lines) / count)
    return (lines[i : i + size] for i in range(0, len(lines), size))


def _case_name(case: dict[str, Any]) -> str:
    if "m" in case:
        activations = ACTIVATIONS[case["a_dtype"]]
        kind = "" if activations == "BF16" else f"{activations}, "
        return f"{kind}{case['m']} × {case['n']} × {case['k']}"
    row = Row.of(case)
    return f"{row.head_dims} {row.mask} {row.length}"


def counter_rows(lines: list[dict[str, Any]]) -> list[list[str]]:
    """A row a counter that was asked for; of one that the machine did not have, dashes."""
    return [
        [name, *(number(line.get(key)) for line in lines)]
        for key, name in COUNTERS.items()
        if any(key in line for line in lines)
    ]


def resources_table(folder: pathlib.Path, page: str) -> str:
    """Registers of each kernel of a page, as ptxas reported them. FP8's kernels have their own."""
    steps = sorted(set(folder.glob(f"{page}_*.json")) - {folder / f"{page}_fp8.json"})
    files = [folder / f"{page}.json", *steps]
    body = [
        [f"`{name}`", str(used["registers"])]
        for file in files
        for name, used in json.loads(file.read_text())["budget"].items()
    ]
    return markdown(["kernel", "registers a thread"], body)
