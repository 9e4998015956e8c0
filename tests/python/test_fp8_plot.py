"""Tables, plots and goals of attention on FP8, from results made up here and from a race."""

import pytest

from test_decode_plot import goals_of, page_with
from test_gemm_plot import table_of, write
from test_results import MEASURED, UNSUPPORTED, with_case, without
from tilewright.bench import __main__ as bench
from tilewright.plot import __main__ as plot
from tilewright.plot import fp8_goals
from tilewright.plot.documents import rendered
from tilewright.plot.fp8 import Fp8Results

FP8 = with_case(MEASURED | {"operation": "attention_fp8"}, dtype="e4m3")
SPEEDS = {
    "tilewright/k6": 700.0, "tilewright/flash": 1500.0, "tilewright/k7": 1000.0,
    "tilewright/k8_never": 1400.0, "tilewright/k8": 1100.0, "tilewright/flash_fp8": 1200.0,
    "cudnn": 900.0, "fa3": 960.0,
}  # fmt: skip


def lines_of(speeds=SPEEDS, seqlen=4096, error=0.04, **case):
    return [
        with_case(
            FP8 | {"impl": impl, "tflops": speed, "median_us": 1e5 / speed, "rel_fro_error": error},
            q_len=seqlen, kv_len=seqlen, **case,
        )
        for impl, speed in speeds.items()
    ]  # fmt: skip


def quantizing(ours, copy, head_dim=128, *, transposed):
    case = {"dtype": "bf16", "batch": 8, "len": 2048, "heads": 16, "head_dim": head_dim}
    case |= {"rotated": not transposed, "transposed": transposed}
    times = {"tilewright/hopper": ours, "copy": copy}
    line = MEASURED | {"operation": "rotate_quantize", "case": case}
    return [line | {"impl": impl, "median_us": us, "gbps": 1e4 / us} for impl, us in times.items()]


def accuracy(errors, outliers=False, rotated=True, descale="block"):
    """{implementation: {keys: error}}"""
    extra = {"rotated": rotated, "descale": descale, "checked_rows": 256}
    extra |= {"outliers": True} if outliers else {}
    return [
        with_case(
            FP8 | {"impl": impl, "rel_fro_error": error}, q_len=keys, kv_len=keys, batch=1, **extra
        )
        for impl, curve in errors.items()
        for keys, error in curve.items()
    ]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs/worklog").mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    return tmp_path


def test_the_race(root):
    page_with(root, "fp8:attention-fp8", "plot:attention-fp8")
    refused = with_case(
        UNSUPPORTED | {"operation": "attention_fp8", "impl": "tilewright/flash_fp8"},
        dtype="e4m3", head_dim=256, v_dim=256,
    )  # fmt: skip
    large = {impl: speed for impl, speed in SPEEDS.items() if impl != refused["impl"]}
    write(root, lines_of() + lines_of(large, head_dim=256, v_dim=256) + [refused], "attention-fp8")
    text, table = table_of(root)
    assert table[0].endswith("`k8` | `flash_fp8` | `cudnn` | `fa3` | to best peer |")
    ours = "700 | 1500 | 1000 | 1400 | 1100"
    assert table[2:] == [
        f"| 128 | full | 4096 | {ours} | 1200 | 900 | 960 | 1.250 |",
        f"| 256 | full | 4096 | {ours} | — | 900 | 960 | 1.146 |",
    ]
    assert "![attention-fp8](../plots/attention-fp8.svg)" in text


def test_measures_are_not_ours():
    results = Fp8Results(lines_of())
    (row,) = results.rows
    assert results.fastest(row, is_peer=False) == ("flash_fp8", 1200.0)
    assert results.fastest(row, is_peer=True) == ("fa3", 960.0)
    assert results.production_us(row) == pytest.approx(1e5 / 1200)


def test_errors_are_the_largest_of_all_lengths(root):
    page_with(root, "fp8-errors:attention-fp8")
    two = {"tilewright/k8": 1.0, "fa3": 2.0}
    unchecked = [line | {"rel_fro_error": None} for line in lines_of({"fa3": 2.0}, causal=True)]
    checked = lines_of({"tilewright/k8": 1.0}, error=0.051, causal=True)
    lines = lines_of(two, 512, 0.05) + lines_of(two, 1024, 0.047) + checked + unchecked
    write(root, lines, "attention-fp8")
    _, table = table_of(root)
    assert table[2:] == ["| 128 | full | 5.00 | 5.00 |", "| 128 | causal | 5.10 | — |"]


def test_the_cost_of_quantising(root):
    page_with(root, "fp8-cost:attention-fp8:rotate_quantize")
    write(root, lines_of(seqlen=512) + lines_of(seqlen=16384), "attention-fp8")
    text, table = table_of(root)
    assert "Not measured yet." in text and not table
    write(root, quantizing(2.0, 1.9, transposed=False) + quantizing(3.0, 2, transposed=True),
          "rotate_quantize")  # fmt: skip
    _, table = table_of(root)
    share = f"{100 * 7 / (1e5 / 1200):.2f}"
    assert table[0] == "| head dim | mask | µs | 512 | 16k |"
    assert table[2:] == [f"| 128 | full | 7.00 | {share} | {share} |"]


def test_copies(root):
    page_with(root, "copies:rotate_quantize")
    write(root, quantizing(2.0, 1.8, transposed=False), "rotate_quantize")
    _, table = table_of(root)
    assert table == [
        "| dtype | batch | len | heads | head dim | rotated | transposed | ours | copy | to copy |",
        "| " + "--- | " * 7 + "---: | " * 2 + "---: |",
        "| bf16 | 8 | 2048 | 16 | 128 | yes | no | 5.00 | 5.56 | 0.900 |",
    ]


ERRORS = {
    "tilewright/k7": {1024: 0.06, 131072: 0.05},
    "tilewright/k8": {1024: 0.05, 131072: 0.054},
    "fa3": {131072: 0.07},
}


def test_accuracy(root):
    page_with(root, "accuracy:accuracy-fp8", "plot:accuracy-fp8")
    tensor = accuracy(ERRORS, rotated=False, descale="tensor", outliers=True)
    write(root, tensor + accuracy({"tilewright/k8": {1024: 0.02}}), "accuracy-fp8")
    text, table = table_of(root)
    assert table == [
        "| values | rotated | a descale a | kernel | 1k | 128k |",
        "| --- | --- | --- | --- | ---: | ---: |",
        "| with outliers | no | tensor | `k7` | 6.00 | 5.00 |",
        "| with outliers | no | tensor | `k8` | 5.00 | 5.40 |",
        "| with outliers | no | tensor | `fa3` | — | 7.00 |",
        "| normal | yes | block | `k8` | 2.00 | — |",
    ]
    assert "16 heads, head dim 128, full; errors of 256 random rows. NVIDIA H200" in text
    assert "![accuracy-fp8](../plots/accuracy-fp8.svg)" in text


def test_the_plot_of_accuracy(root):
    pytest.importorskip("matplotlib")
    forms = [
        accuracy(ERRORS, outliers, rotated, descale)
        for outliers in (False, True)
        for rotated in (False, True)
        for descale in ("tensor", "block")
    ]
    write(root, [line for lines in forms for line in lines], "accuracy-fp8")
    assert plot.main(["--root", str(root)]) == 0
    stem = root / "docs/plots/accuracy-fp8"
    svg = stem.with_suffix(".svg").read_text()
    assert stem.with_suffix(".png").exists()
    for text in ("with outliers; rotated, a descale a block", "normal; a descale a tensor", "fa3",
                 "relative RMSE, %", "128k"):  # fmt: skip
        assert text in svg
    assert plot.main(["--root", str(root)]) == 0
    assert stem.with_suffix(".svg").read_text() == svg


def test_goals_without_results(root):
    goals = goals_of(root, "fp8-goals")
    assert len(goals) == len(fp8_goals.GOALS) == 12
    assert all(cells[1:2] + cells[3:] == ["0", "—", "—"] for cells in goals.values())


def test_goals(root):
    slow = SPEEDS | {"fa3": 1250.0}
    large = {"head_dim": 256, "v_dim": 256}
    write(root, lines_of(slow) + lines_of(seqlen=8192) + lines_of(seqlen=16384)
          + lines_of(seqlen=16384, causal=True) + lines_of(seqlen=8192, **large),
          "attention-fp8")  # fmt: skip
    write(root, quantizing(2.0, 1.8, transposed=False) + quantizing(2.0, 1.6, transposed=True),
          "rotate_quantize")  # fmt: skip
    best = {"tilewright/k8": {1024: 0.02, 131072: 0.021}}
    longer = {"tilewright/k8": {1024: 0.02, 131072: 0.023}}
    plain = {"tilewright/k7": {1024: 0.04, 131072: 0.08}}
    tensor = {"rotated": False, "descale": "tensor"}
    normal = accuracy(best) + accuracy({"tilewright/k7": {1024: 0.03}}, **tensor)
    outliers = accuracy(longer, outliers=True) + accuracy(plain, outliers=True, **tensor)
    write(root, normal + outliers, "accuracy-fp8")
    reached = {name: (cells[1], *cells[3:]) for name, cells in goals_of(root, "fp8-goals").items()}
    mean = (1.25**4 * 0.96) ** 0.2
    assert reached == {
        "Production: geometric mean, to best peer": ("5", f"{mean:.3f}", "yes"),
        "Production: least, to best peer": ("5", "0.960", "no"),
        "Production, D 128 full from 8k: least TFLOP/s": ("2", "1200", "yes"),
        "Production, D 256 full from 8k: least TFLOP/s": ("1", "1200", "no"),
        "`k7`, D 128, 16k: least, to `k6`": ("2", "1.429", "yes"),
        "Rotating and quantising: least, to a copy": ("2", "0.800", "no"),
        "`k8`, outliers: most, error to `k7`'s": ("2", "0.500", "no"),
        "`k8`, normal values: most, error to `k7`'s": ("1", "0.667", "yes"),
        "`k8`: most, error at 128k to 1k": ("2", "1.150", "no"),
        "`flash_fp8`, outliers: most, error to `k7`'s": ("0", "—", "—"),
        "`flash_fp8`, normal values: most, error to `k7`'s": ("0", "—", "—"),
        "`flash_fp8`: most, error at 128k to 1k": ("0", "—", "—"),
    }


def test_races_give_tables_and_plots(root):
    pytest.importorskip("matplotlib")
    pytest.importorskip("torch")
    page_with(root, "fp8:attention-fp8", "fp8-errors:attention-fp8", "accuracy:accuracy-fp8",
              "fp8-goals:results")  # fmt: skip
    small = ["fp8", "--device=cpu", "--gap=0", "--samples=2", "--check", "--peers=none"]
    small += ["--headdim=64", "--heads=1", "--batch=1", "--seqlen=64,128"]
    sweep = f"--json={root / 'results/attention-fp8.jsonl'}"
    errors = f"--json={root / 'results/accuracy-fp8.jsonl'}"
    assert bench.main([*small, sweep]) == 0
    forms = ["--descale=tensor,block", "--rotated=both", "--values=both", "--causal=off"]
    assert bench.main([*small, errors, *forms]) == 0
    assert plot.main(["--root", str(root)]) == 0
    assert plot.main(["--root", str(root), "--check"]) == 0
    text = rendered(root, root / "docs/worklog/page.md")
    assert text.count("| `cpu` |") == 2 + 8 and "errors of all rows" in text
    for name in ("attention-fp8", "accuracy-fp8"):
        assert (root / f"docs/plots/{name}.svg").exists()


def test_lines_without_an_error_have_none():
    lines = [without(line, "rel_fro_error") for line in accuracy(ERRORS)]
    assert not fp8_goals.AccuracyResults(lines).errors
