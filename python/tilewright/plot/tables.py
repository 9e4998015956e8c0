"""Markdown tables: of results, of profiles, of the resources that kernels take."""

import json
import pathlib
from typing import Any

from tilewright.plot.results import Results, short_name

# A profile's counters: key of its lines -> what the table says of it.
COUNTERS = {
    "duration_us": "duration, µs",
    "tensor_pct": "tensor pipe, %",
    "fma_pct": "FMA pipe, %",
    "alu_pct": "ALU pipe, %",
    "mufu_pct": "special functions, %",
    "issue_pct": "issue slots, %",
    "smem_pct": "L1 and shared memory, %",
    "l2_pct": "L2, %",
    "dram_pct": "DRAM, %",
    "dram_bytes": "DRAM, bytes",
    "warps_per_scheduler": "warps a scheduler",
    "eligible_warps": "eligible warps",
    "stall_barrier": "stalled on: barrier",
    "stall_long_scoreboard": "global memory, TMA barrier",
    "stall_short_scoreboard": "shared memory",
    "stall_wait": "fixed latency",
    "stall_math": "math pipe",
    "stall_lg_throttle": "global-memory queue",
    "stall_mio_throttle": "shared-memory queue",
}


def number(value: float | None) -> str:
    """Three significant digits, as few characters as that takes."""
    if value is None:
        return "—"
    if value >= 1e6:
        return f"{value:.2e}"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def markdown(header: list[str], body: list[list[str]], left_columns: int = 1) -> str:
    rule = ["---"] * left_columns + ["---:"] * (len(header) - left_columns)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *body])


def results_table(path: pathlib.Path, page: str | None) -> str:
    """TFLOP/s: a row a case, a column an implementation (with a page: that page's kernels)."""
    results = Results.read(path)
    impls = results.rung(page) if page else results.impls
    header = ["head dim", "mask", "length", *(f"`{impl}`" for impl in impls)]
    body = []
    for row in results.rows:
        measured = [results.tflops.get((row, impl)) for impl in impls]
        if not any(measured):
            continue
        cells = [number(tflops) for tflops in measured]
        mask = "causal" if row.causal else "full"
        body.append([str(row.head_dim), mask, str(row.seqlen), *cells])
    return f"{markdown(header, body, 2)}\n\nTFLOP/s, medians. {results.provenance}."


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
    body = [
        [name, *(number(line.get(key)) for line in lines)] for key, name in COUNTERS.items()
    ]  # fmt: skip
    cases = dict.fromkeys(_describe(line["case"]) for line in lines)
    runs = dict.fromkeys(line["run"] for line in lines)
    return f"{markdown(header, body)}\n\n{'; '.join(cases)}; run {', '.join(runs)}."


def resources_table(path: pathlib.Path, page: str) -> str:
    """Registers of each kernel of a page, as ptxas reported them."""
    body = []
    for kernel, used in json.loads(path.read_text()).items():
        namespace, _, name = kernel.removeprefix("tilewright::cuda::").partition("::")
        if namespace == page or namespace.startswith(page + "_"):
            body.append([f"`{name}`", str(used["registers"])])
    return markdown(["kernel", "registers a thread"], body)
