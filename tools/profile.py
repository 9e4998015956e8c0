"""Profiles kernels with Nsight Compute and writes one JSON line a kernel.

    tools/profile.py --cli build/cuda/cli/tilewright --json FILE --commit COMMIT \
        --kernels k1,k2,k4 --seqlen 4096 --headdim 128 --heads 16 --batch 4

Each line holds the run, the case, the kernel's launch (one line per launch of a multi-launch
kernel) and the counters named below, in the units of METRICS. Clocks are left as they are.
"""

import argparse
import csv
import io
import json
import pathlib
import subprocess
import sys
import time

STALLED = "smsp__average_warps_issue_stalled"
LADDER = "k1,k2,k3_1,k3_2,k3_3,k4_qk,k4,k5,k6_pingpong,k6_overlap,k6"

# Our name -> Nsight Compute's metric. Percentages are of the unit's peak while the kernel ran.
METRICS = {
    "duration_us": "gpu__time_duration.sum",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "fma_pct": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "alu_pct": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "mufu_pct": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "issue_pct": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "smem_pct": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active",
    "l2_pct": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_bytes": "dram__bytes.sum",
    "warps_per_scheduler": "smsp__warps_active.avg.per_cycle_active",
    "eligible_warps": "smsp__warps_eligible.avg.per_cycle_active",
    "stall_barrier": f"{STALLED}_barrier_per_issue_active.ratio",
    "stall_long_scoreboard": f"{STALLED}_long_scoreboard_per_issue_active.ratio",
    "stall_short_scoreboard": f"{STALLED}_short_scoreboard_per_issue_active.ratio",
    "stall_wait": f"{STALLED}_wait_per_issue_active.ratio",
    "stall_math": f"{STALLED}_math_pipe_throttle_per_issue_active.ratio",
    "stall_lg_throttle": f"{STALLED}_lg_throttle_per_issue_active.ratio",
    "stall_mio_throttle": f"{STALLED}_mio_throttle_per_issue_active.ratio",
}
SCALE_TO_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
SCALE_TO_BYTES = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def profile(cli: str, kernel: str, case: argparse.Namespace) -> list[dict]:
    """Counters of every launch of one call of the kernel."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw",
               "--launch-skip-before-match", "0", "--kernel-name",
               "regex:^(k[0-9]|scores|softmax|output)", "--launch-count",
               "3" if kernel == "k1" else "1", "--metrics", ",".join(METRICS.values()),
               cli, "attention", "--kernel", kernel, "--batch", str(case.batch), "--seqlen",
               str(case.seqlen), "--heads", str(case.heads), "--headdim", str(case.headdim),
               "--samples", "1", "--gap", "0"]  # fmt: skip
    if case.causal:
        command.append("--causal")
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = list(csv.DictReader(io.StringIO(output[output.index('"ID"') :])))
    units = rows[0]
    launches = []
    for row in rows[1:]:
        counters = {}
        for name, metric in METRICS.items():
            value = float(row[metric].replace(",", ""))
            value *= SCALE_TO_US.get(units[metric], SCALE_TO_BYTES.get(units[metric], 1))
            counters[name] = round(value, 4)
        launches.append({"launch": row["Kernel Name"].split("(")[0], **counters})
    return launches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", required=True, help="the tilewright binary")
    parser.add_argument("--json", required=True, type=pathlib.Path, help="the file to write")
    parser.add_argument("--commit", required=True, help="the commit the binary was built from")
    parser.add_argument("--kernels", default=LADDER)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--headdim", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    case = parser.parse_args()

    run = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) + " " + case.commit
    problem = {"dtype": "bf16", "batch": case.batch, "q_len": case.seqlen, "kv_len": case.seqlen,
               "heads": case.heads, "kv_heads": case.heads, "head_dim": case.headdim,
               "v_dim": case.headdim, "causal": case.causal}  # fmt: skip
    with case.json.open("w") as out:
        for kernel in case.kernels.split(","):
            for launch in profile(case.cli, kernel, case):
                line = {"run": run, "operation": "attention", "case": problem,
                        "impl": f"tilewright/{kernel}", **launch}  # fmt: skip
                out.write(json.dumps(line) + "\n")
                print(kernel, launch["launch"], f"{launch['duration_us']:.0f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
