"""The ladder of attention kernels in one table: what each one adds, and what that gives."""

import pathlib

from tilewright.plot.results import Results, Row
from tilewright.plot.text import markdown, number

# A rung's kernels, the fastest of which stands for it -> what the rung adds.
RUNGS = {
    ("k1",): "naive: three launches, S in global memory",
    ("k2",): "tiles and an online softmax in one launch",
    ("k3_1", "k3_2", "k3_3"): "tiles loaded by TMA",
    ("k4_qk",): "Q Kᵀ on the tensor cores (WGMMA)",
    ("k4",): "P V on the tensor cores, too",
    ("k5",): "warps that load, warps that compute",
    ("k6",): "ping-pong, softmax under the GEMMs",
    ("flash",): "persistent blocks, a config for each shape",
}
HEAD_DIM, MASK, LENGTH = 128, "full", 16384
# TFLOP/s by the white paper's table of the H100 SXM5. NVIDIA's data sheets of H100 SXM and H200 SXM
# agree: both say 1,979 with sparsity, twice the dense number.
PEAK_TFLOPS = {"NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H200": 989.4}
PEAK_SOURCE = "dense BF16 (NVIDIA H100 Tensor Core GPU Architecture; the H200's is the same)"


def ladder_table(path: pathlib.Path) -> str:
    """A row a rung: its fastest kernel, the idea, TFLOP/s, the ratio to the rung before, and the
    share of the tensor cores' peak."""
    results = Results.read(path)
    row = next((row for row in results.rows if _is_the_case(row)), None)
    peak = PEAK_TFLOPS.get(results.lines[0]["gpu"])
    header = ["kernel", "idea", "TFLOP/s", "× the one before", "% of peak"]
    body, before = [], None
    for kernels, idea in RUNGS.items():
        kernel = max(kernels, key=lambda kernel: results.tflops.get((row, kernel), 0))
        speed = results.tflops.get((row, kernel))
        ratio = speed / before if speed and before else None
        percent = 100 * speed / peak if speed and peak else None
        body.append([f"`{kernel}`", idea, number(speed), number(ratio), number(percent)])
        before = speed
    case = f"BF16, head dim {HEAD_DIM}, {MASK} mask, length {LENGTH}, medians"
    source = f"Peak: {peak} TFLOP/s, {PEAK_SOURCE}. " if peak else ""
    return f"{markdown(header, body, 2)}\n\n{case}. {source}{results.provenance}."


def _is_the_case(row: Row) -> bool:
    case = (row.dtype, row.head_dims, row.mask, row.length)
    return case == ("bf16", str(HEAD_DIM), MASK, str(LENGTH))
