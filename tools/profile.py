"""Profiles kernels with Nsight Compute and writes one JSON line a launch.

    tools/profile.py --cli build/cuda/cli/tilewright --json FILE --kernels k1,k2,k4
    tools/profile.py --cli build/cuda/cli/tilewright --json FILE --kernels flash \
        --shapes 64,causal,512,32,32 256,full,8192,2,8
    tools/profile.py --cli build/cuda/cli/tilewright --json FILE --kernels nvfp4 \
        --gemms 16,7168,16384 16,7168,16384,fp16

A shape is head dim, mask, length, batch, heads; a GEMM M, N, K, and what the activations are in
where that is not bf16. Each line holds the run, the case, the kernel's launch (one line per launch
of a multi-launch kernel) and the counters named below, in the units of METRICS; null where this
GPU, or this Nsight Compute, has no such counter. Clocks are left as they are.
"""

import argparse
import csv
import io
import json
import math
import pathlib
import re
import subprocess
import sys
import time

STALLED = "smsp__average_warps_issue_stalled"
RESULT_OF = {"bf16": "bf16", "fp16": "fp16", "nvfp4": "bf16"}  # activations -> result
OUR_FUNCTIONS = "^(k[0-9]|scores|softmax|output|flash$|nvfp4$)"

# Our name -> Nsight Compute's metric. Percentages are of the unit's peak while the kernel ran.
METRICS = {
    "duration_us": "gpu__time_duration.sum",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "fma_pct": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "alu_pct": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "mufu_pct": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "issue_pct": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "smem_pct": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active",
    "smem_lsu_pct": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active",
    "bank_reads_pct": "l1tex__data_bank_reads.avg.pct_of_peak_sustained_elapsed",
    "bank_writes_pct": "l1tex__data_bank_writes.avg.pct_of_peak_sustained_elapsed",
    "gmma_instructions": "smsp__sass_inst_executed_op_shared_gmma.sum",
    "tma_pct": "sm__pipe_tma_cycles_active.avg.pct_of_peak_sustained_active",
    "l2_pct": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_bytes": "dram__bytes.sum",
    "sm_clock_ghz": "sm__cycles_elapsed.avg.per_second",
    "warps_per_scheduler": "smsp__warps_active.avg.per_cycle_active",
    "eligible_warps": "smsp__warps_eligible.avg.per_cycle_active",
    "stall_barrier": f"{STALLED}_barrier_per_issue_active.ratio",
    "stall_gmma": f"{STALLED}_gmma_per_issue_active.ratio",
    "stall_long_scoreboard": f"{STALLED}_long_scoreboard_per_issue_active.ratio",
    "stall_short_scoreboard": f"{STALLED}_short_scoreboard_per_issue_active.ratio",
    "stall_wait": f"{STALLED}_wait_per_issue_active.ratio",
    "stall_math": f"{STALLED}_math_pipe_throttle_per_issue_active.ratio",
    "stall_lg_throttle": f"{STALLED}_lg_throttle_per_issue_active.ratio",
    "stall_mio_throttle": f"{STALLED}_mio_throttle_per_issue_active.ratio",
    "stall_sleeping": f"{STALLED}_sleeping_per_issue_active.ratio",
    "stall_no_instruction": f"{STALLED}_no_instruction_per_issue_active.ratio",
    "stall_dispatch": f"{STALLED}_dispatch_stall_per_issue_active.ratio",
    "stall_not_selected": f"{STALLED}_not_selected_per_issue_active.ratio",
}
# To microseconds, bytes, GHz. Versions of Nsight Compute differ in names and in capitals.
SCALE = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3,
         "byte": 1, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9,
         "hz": 1e-9, "mhz": 1e-3, "ghz": 1, "cycle/second": 1e-9, "cycle/usecond": 1e-3,
         "cycle/nsecond": 1}  # fmt: skip


def parse_shape(text: str) -> dict:
    """The case of a results line, from "head dim,mask,length,batch,heads"."""
    try:
        head_dim, mask, length, batch, heads = text.split(",")
        head_dim, length, batch, heads = (int(n) for n in (head_dim, length, batch, heads))
        causal = {"full": False, "causal": True}[mask]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(
            f"is '{text}', must be head dim,full or causal,length,batch,heads"
        ) from None
    return {"dtype": "bf16", "batch": batch, "q_len": length, "kv_len": length, "heads": heads,
            "kv_heads": heads, "head_dim": head_dim, "v_dim": head_dim,
            "causal": causal}  # fmt: skip


def parse_gemm(text: str) -> dict:
    """The case of a results line, from "M,N,K" or "M,N,K,activations"."""
    try:
        m, n, k = (int(size) for size in text.split(",")[:3])
        (a_dtype,) = text.split(",")[3:] or ["bf16"]
        out_dtype = RESULT_OF[a_dtype]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(
            f"is '{text}', must be M,N,K or M,N,K,{' or '.join(RESULT_OF)}"
        ) from None
    return {"m": m, "n": n, "k": k, "l": 1, "a_dtype": a_dtype, "b_dtype": "nvfp4",
            "out_dtype": out_dtype}  # fmt: skip


def operation_of(case: dict) -> str:
    return "attention" if "q_len" in case else "gemm_nvfp4"


def commit_of(cli: str) -> str:
    """The commit that the binary was built from, by its own word."""
    version = subprocess.run([cli, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.fullmatch(r"tilewright \S+ \((\S+)\)", version.strip())
    if not match:
        raise SystemExit(f"{cli} --version says {version!r}, which names no commit")
    return match[1]


def ladder_of(cli: str) -> list[str]:
    """The rungs of attention's ladder, by the binary's own word."""
    listed = subprocess.run([cli, "list", "--json"], capture_output=True, text=True, check=True)
    kernels = json.loads(listed.stdout)
    return [each["name"] for each in kernels if re.match(r"docs/worklog/k\d", each["doc"])]


def command_of(cli: str, kernel: str, case: dict, metrics: dict[str, str]) -> list[str]:
    """Nsight Compute on the kernel's first call."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw",
               "--launch-skip-before-match", "0", "--kernel-name", f"regex:{OUR_FUNCTIONS}",
               "--launch-count", "3" if kernel == "k1" else "1",
               "--metrics", ",".join(metrics.values()), cli]  # fmt: skip
    sampling = ["--kernel", kernel, "--samples", "1", "--gap", "0"]
    if operation_of(case) == "gemm_nvfp4":
        options = [("--m", "m"), ("--n", "n"), ("--k", "k"), ("--a-dtype", "a_dtype"),
                   ("--dtype", "out_dtype")]  # fmt: skip
        command.append("gemm")
    else:
        options = [("--batch", "batch"), ("--seqlen", "q_len"), ("--heads", "heads"),
                   ("--headdim", "head_dim")]  # fmt: skip
        command.append("attention")
    for option, key in options:
        command += [option, str(case[key])]
    return command + sampling + ["--causal"] * case.get("causal", False)


def unknown_metrics(output: str, metrics: dict[str, str]) -> list[str]:
    """Our names of the metrics that Nsight Compute names where it fails."""
    return [
        name
        for name, metric in metrics.items()
        if re.search(rf"(?<!\w){re.escape(metric.partition('.')[0])}(?!\w)", output)
    ]


def parse_number(text: str | None, unit: str) -> float | None:
    """A counter in our units; None where Nsight Compute gives none."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:  # "n/a"
        return None
    return round(value * SCALE.get(unit.lower(), 1), 4) if math.isfinite(value) else None


def parse_launches(output: str) -> list[dict]:
    """Name and counters of each launch, from Nsight Compute's CSV page; all metrics are named."""
    rows = list(csv.DictReader(io.StringIO(output[output.index('"ID"') :])))
    units = rows[0]
    return [
        {"launch": row["Kernel Name"].split("(")[0]}
        | {name: parse_number(row.get(m), units.get(m, "")) for name, m in METRICS.items()}
        for row in rows[1:]
    ]


def profile(cli: str, kernel: str, case: dict, metrics: dict[str, str]) -> list[dict]:
    """Counters of every launch of one call of the kernel. Metrics that do not exist here are taken
    out of `metrics`, with a word about them."""
    while True:
        result = subprocess.run(
            command_of(cli, kernel, case, metrics), capture_output=True, text=True, check=False
        )
        if result.returncode == 0 and '"ID"' in result.stdout:
            return parse_launches(result.stdout)
        output = result.stdout + result.stderr
        unknown = unknown_metrics(output, metrics)
        if not unknown:
            raise SystemExit(f"ncu failed with {kernel}:\n{output}")
        for name in unknown:
            print(f"left out: {name}, {metrics.pop(name)} is not known here", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", required=True, help="the tilewright binary")
    parser.add_argument("--json", required=True, type=pathlib.Path, help="the file to write")
    parser.add_argument("--kernels", type=lambda names: names.split(","), metavar="NAME,...",
                        help="default: attention's ladder")  # fmt: skip
    parser.add_argument("--shapes", nargs="+", type=parse_shape, metavar="SHAPE",
                        default=[parse_shape("128,full,4096,4,16")],
                        help="head dim,full or causal,length,batch,heads")  # fmt: skip
    parser.add_argument("--gemms", nargs="+", type=parse_gemm, metavar="M,N,K[,TYPE]",
                        help="of GEMMs, in the place of shapes")  # fmt: skip
    arguments = parser.parse_args()

    start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    run = f"{start} {commit_of(arguments.cli)}"
    kernels = arguments.kernels or ladder_of(arguments.cli)
    metrics = dict(METRICS)
    missing = set(METRICS)
    with arguments.json.open("w") as out:
        for case in arguments.gemms or arguments.shapes:
            for kernel in kernels:
                for launch in profile(arguments.cli, kernel, case, metrics):
                    line = {"run": run, "operation": operation_of(case), "case": case,
                            "impl": f"tilewright/{kernel}", **launch}  # fmt: skip
                    out.write(json.dumps(line) + "\n")
                    missing -= {name for name in METRICS if line[name] is not None}
                    print(kernel, launch["launch"], case, f"{launch['duration_us']} us")
    if missing:
        print(f"null in every line: {', '.join(sorted(missing))}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
