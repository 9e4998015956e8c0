"""Tables and plots from results made up here, and the documents of this repository."""

import json
import pathlib

import pytest

from test_results import (
    GEMM_CASE,
    MEASURED,
    PROBED,
    QUANTIZE_CASE,
    UNSUPPORTED,
    with_case,
    without,
)
from tilewright.plot import __main__ as plot
from tilewright.plot import figures
from tilewright.plot.documents import rendered
from tilewright.plot.results import Results
from tilewright.plot.text import number

REPOSITORY = pathlib.Path(__file__).parents[2]
SPEEDS = {"tilewright/k2": 9.5, "tilewright/k3_1": 9.876, "tilewright/k3_2": 12.34, "fa3": 600.4}


@pytest.fixture
def root(tmp_path):
    """A repository with results of four implementations, a profile, a budget and two documents."""
    lines = [
        with_case(
            MEASURED | {"impl": impl, "tflops": speed}, q_len=seqlen, kv_len=seqlen, causal=causal
        )
        for causal in (False, True)
        for seqlen in (4096, 512)
        for impl, speed in SPEEDS.items()
    ]
    lines[0] = with_case(UNSUPPORTED | {"impl": "tilewright/k2"}, q_len=4096)
    (tmp_path / "results/profiles").mkdir(parents=True)
    write_lines(tmp_path / "results/attention-ladder.jsonl", lines)
    profile = {key: MEASURED[key] for key in ("run", "operation", "case")}
    profile |= {"impl": "tilewright/k3_1", "launch": "k3<128, 1>", "fma_pct": 61.25}
    write_lines(tmp_path / "results/profiles/attention-ladder.jsonl", [profile])
    (tmp_path / "tests/resources/kernels").mkdir(parents=True)
    (tmp_path / "tests/resources/kernels/k3.json").write_text(
        '{"instructions": {}, "budget": {"k3<64, 1>": {"registers": 96, "smem_bytes": 0}}}'
    )
    (tmp_path / "docs/worklog").mkdir(parents=True)
    (tmp_path / "README.md").write_text("before\n" + block("results:attention-ladder") + "after\n")
    names = ("results:attention-ladder:k3", "profile:k3", "resources:k3", "results:later")
    (tmp_path / "docs/worklog/k3.md").write_text("".join(map(block, names)))
    return tmp_path


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def block(name):
    return f"<!-- {name} begin -->\n<!-- {name} end -->\n"


def test_the_ladder_table(root):
    text = rendered(root, root / "README.md")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows == [
        "| head dim | mask | length | `k2` | `k3_1` | `k3_2` | `fa3` |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        "| 128 | full | 512 | 9.50 | 9.88 | 12.3 | 600 |",
        "| 128 | full | 4096 | — | 9.88 | 12.3 | 600 |",
        "| 128 | causal | 512 | 9.50 | 9.88 | 12.3 | 600 |",
        "| 128 | causal | 4096 | 9.50 | 9.88 | 12.3 | 600 |",
    ]
    assert "NVIDIA H200, driver 580.1, CUDA 13.0; run 2026-01-31T12:34:56Z 0123456789" in text
    assert text.startswith("before\n<!--") and text.endswith("end -->\nafter\n")


def test_a_worklog_page(root):
    text = rendered(root, root / "docs/worklog/k3.md")
    assert "| head dim | mask | length | `k2` | `k3_1` | `k3_2` |\n" in text
    assert "| FMA pipe, % | 61.2 |" in text
    assert "| `k3<64, 1>` | 96 |" in text
    assert block("results:later") in text  # no such results yet


def test_the_ratio_to_the_best_peer(root):
    speeds = {"tilewright/flash": 90.0, "cudnn": 60.0, "fa3": 100.0}
    lines = [
        with_case(MEASURED | {"impl": impl, "tflops": speed}, **case)
        for case in (
            {"kv_heads": 2, "head_dim": 192},
            {"lengths": [30, 4066], "batch": 2, "q_len": 4096},
            {"lengths": [2048, 2048], "batch": 2, "q_len": 4096},
        )
        for impl, speed in speeds.items()
    ]
    lines[1] = without(lines[1], "tflops") | {"supported": False, "reason": "why"}
    write_lines(root / "results/varlen.jsonl", lines)
    readme = root / "README.md"
    readme.write_text(block("ratio:varlen"))
    rows = [line for line in rendered(root, readme).splitlines() if line.startswith("|")]
    header = "| head dim | mask | length | heads of Q, K | `flash` | `cudnn` | `fa3` |"
    assert rows[0] == f"{header} to best peer |"
    assert rows[2:] == [
        "| 128 | full | 2 of 30 to 4066 | 16, 16 | 90.0 | 60.0 | 100 | 0.900 |",
        "| 128 | full | 2 of 2048 | 16, 16 | 90.0 | 60.0 | 100 | 0.900 |",
        "| 192 (V 128) | full | 4096 | 16, 2 | 90.0 | — | 100 | 0.900 |",
    ]


def test_cases_of_features_stand_apart(root):
    cases = (
        {"causal": True},
        {"causal": True, "window": [1023, None]},
        {"causal": True, "window": [4095, None]},
        {"window": [5, 5], "softcap": 50.0},
        {"window": [None, 7], "sinks": True},
        {"q_len": 1, "kv_len": 8192, "batch": 16},
        {"q_len": 1, "kv_len": 65536, "batch": 2},
    )
    lines = [
        with_case(MEASURED | {"impl": impl, "tflops": 10.0 * (index + 1)}, **case)
        for index, case in enumerate(cases)
        for impl in ("tilewright/flash", "fa3")
    ]
    write_lines(root / "results/features.jsonl", lines)
    readme = root / "README.md"
    readme.write_text(block("ratio:features"))
    rows = [line for line in rendered(root, readme).splitlines() if line.startswith("|")]
    assert [row.split(" | ")[1:4] for row in rows[2:]] == [
        ["full, window 5, cap 50", "4096", "40.0"],
        ["full, window all and 7, sinks", "4096", "50.0"],
        ["full", "16 of 1, keys 8192", "60.0"],
        ["full", "2 of 1, keys 65536", "70.0"],
        ["causal", "4096", "10.0"],
        ["causal, window 1023", "4096", "20.0"],
        ["causal, window 4095", "4096", "30.0"],
    ]


def race(*cases):
    """Lines of ours, at 90 TFLOP/s, and of two peers at the speeds given for each case."""
    return [
        with_case(MEASURED | {"impl": impl, "tflops": speed}, **case)
        for case, *peers in cases
        for impl, speed in zip(("tilewright/flash", "cudnn", "fa3"), (90.0, *peers), strict=True)
    ]


def test_a_race_that_no_peer_could_run(root):
    line = MEASURED | {"impl": "tilewright/flash"}
    write_lines(root / "results/alone.jsonl", [line, UNSUPPORTED | {"impl": "cudnn"}])
    readme = root / "README.md"
    readme.write_text(block("peers:alone") + block("behind:alone") + block("ratio:later"))
    text = rendered(root, readme)
    assert "| `alone` | 0 | — | — | — | 0 |" in text
    assert "begin -->\n\nNot measured yet.\n\n<!--" in text


def test_races_beside_their_peers(root):
    even = race(({"causal": True}, 45.0, 90.0), ({"q_len": 512, "kv_len": 512}, 45.0, 180.0))
    write_lines(root / "results/even.jsonl", even)
    lost = race(({"head_dim": 64, "v_dim": 64, "kv_heads": 2}, 120.0, 100.0))
    write_lines(root / "results/lost.jsonl", lost)
    readme = root / "README.md"
    readme.write_text(block("peers:even:lost:later") + block("behind:even:later:lost"))
    rows = [line for line in rendered(root, readme).splitlines() if line.startswith("|")]
    assert rows == [
        "| race | cases | geometric mean | least | most | cases below 1 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| `even` | 2 | 0.707 | 0.500 | 1.000 | 1 |",
        "| `lost` | 1 | 0.750 | 0.750 | 0.750 | 1 |",
        "| head dim | mask | length | heads of Q, K | race | ours | best peer |  | to best peer |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 64 | full | 4096 | 16, 2 | `lost` | 90.0 | 120 | `cudnn` | 0.750 |",
        "| 128 | full | 512 | 16, 16 | `even` | 90.0 | 180 | `fa3` | 0.500 |",
    ]


def test_counters_of_several_cases(root):
    readme = root / "README.md"
    readme.write_text(block("counters:attention-flash"))
    assert "begin -->\n\nNot measured yet.\n\n<!--" in rendered(root, readme)
    lines = [
        with_case({key: MEASURED[key] for key in ("run", "operation", "case")}, **case)
        | {"impl": "tilewright/flash", "launch": "flash<4>", "fma_pct": 5.0, "stall_gmma": None}
        for case in ({"causal": True}, {"head_dim": 256, "v_dim": 256})
    ]
    write_lines(root / "results/profiles/attention-flash.jsonl", lines)
    rows = [line for line in rendered(root, readme).splitlines() if line.startswith("|")]
    assert rows == [
        "|  | 128 causal 4096 | 256 full 4096 |",
        "| --- | ---: | ---: |",
        "| FMA pipe, % | 5.00 | 5.00 |",
        "| WGMMA | — | — |",
    ]


def test_counters_of_gemms(root):
    readme = root / "README.md"
    readme.write_text(block("counters:gemm-nvfp4"))
    line = {"run": MEASURED["run"], "operation": "gemm_nvfp4", "fma_pct": 5.0,
            "case": GEMM_CASE}  # fmt: skip
    fp16 = with_case(line, m=1, a_dtype="fp16")
    write_lines(root / "results/profiles/gemm-nvfp4.jsonl", [line, fp16])
    rows = [line for line in rendered(root, readme).splitlines() if line.startswith("|")]
    assert rows[0] == "|  | 16 × 4096 × 7168 | FP16, 1 × 4096 × 7168 |"
    assert "| FMA pipe, % | 5.00 | 5.00 |" in rows


def test_counters_of_many_cases_take_two_tables(root):
    readme = root / "README.md"
    readme.write_text(block("counters:gemm-nvfp4"))
    line = {"run": MEASURED["run"], "operation": "gemm_nvfp4", "fma_pct": 5.0, "case": GEMM_CASE}
    cases = [with_case(line, m=m) for m in range(1, 10)]
    write_lines(root / "results/profiles/gemm-nvfp4.jsonl", cases)
    rows = [line for line in rendered(root, readme).splitlines() if line.startswith("|")]
    assert [row.count("4096 × 7168") for row in rows] == [5, 0, 0, 4, 0, 0]


def test_the_quantiser_beside_a_copy(root):
    line = MEASURED | {"operation": "quantize_nvfp4", "case": QUANTIZE_CASE}
    ours, copy = "tilewright/quantize", "copy"
    speeds = [(ours, 3500.0, {}), (copy, 4000.0, {}), (ours, 3000.0, {"scale_layout": "swizzled"})]
    lines = [with_case(line | {"impl": impl, "gbps": gbps}, **case) for impl, gbps, case in speeds]
    write_lines(root / "results/quantize_nvfp4.jsonl", lines)
    readme = root / "README.md"
    readme.write_text(block("quantize:quantize_nvfp4"))
    text = rendered(root, readme)
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| matrix | scales | global scale | quantiser | copy | quantiser to copy |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| 8192 × 8192 bf16 | linear | computed | 3.50 | 4.00 | 0.875 |",
        "| 8192 × 8192 bf16 | swizzled | computed | 3.00 | — | — |",
    ]
    assert "TB/s, medians. NVIDIA H200" in text


def probed(dtype, n, k, **findings):
    case = {"dtype": dtype, "n": n, "k": k}
    return PROBED | {"case": case, "accumulator": PROBED["accumulator"] | findings}


def test_what_was_found_of_accumulators(root):
    widths = ("bits", "most_bits", "bits_beside_c", "bits_of_c", "bits_of_sum")
    narrow = dict.fromkeys(widths, 14) | {"rounding": "toward_zero", "rounds_each_product": True}
    lines = [probed("e4m3", n, k, **narrow) for n in (8, 16, 256) for k in (32, 64)]
    lines.append(probed("bf16", 8, 16))
    write_lines(root / "results/accumulator.jsonl", lines)
    names = ("accumulator:accumulator", "promotion:accumulator")
    (root / "README.md").write_text("".join(map(block, names)))
    text = rendered(root, root / "README.md")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2:4] == [
        "| e4m3 | 8 to 256 | 32, 64 | toward zero | each product | 14 | 14 | 14 | 14 |",
        "| bf16 | 8 | 16 | nearest even | — | 24 to 29 or more | 24 | 24 | 24 |",
    ]
    # 2^-15 for each key.
    assert rows[6:] == [
        "| 1 | 128 | 0.39 |",
        "| 2 | 256 | 0.78 |",
        "| 4 | 512 | 1.56 |",
        "| 8 | 1024 | 3.12 |",
    ]
    assert "Promotion every 4 at the latest; from 8192 keys of one weight on" in text


def test_accumulators_that_lose_nothing_or_all(root):
    name = "promotion:accumulator"
    for findings, text in (
        ({}, "24 bits, rounded to nearest: no loss on average."),
        ({"bits_beside_c": 8, "rounding": "down"}, "Promotion more often than every tile;"),
    ):
        write_lines(root / "results/accumulator.jsonl", [probed("e4m3", 8, 32, **findings)])
        (root / "README.md").write_text(block(name))
        assert text in rendered(root, root / "README.md")


def test_the_table_of_configs(root):
    kernels = pytest.importorskip("tilewright._kernels")
    lines = [
        with_case(MEASURED | {"impl": f"tilewright/{config}", "tflops": 500.0 + i}, **case)
        for case in ({"causal": True}, {"head_dim": 96, "v_dim": 96})
        for i, config in enumerate(("flash/4", "flash/5", "flash/8"))
        if (config == "flash/4") == ("head_dim" in case)
    ]
    write_lines(root / "results/configs.jsonl", lines)
    readme = root / "README.md"
    readme.write_text(block("configs:configs"))
    text = rendered(root, readme)
    header = "| head dim | mask | heads | batch | length |"
    assert f"{header} `flash/4` |\n| --- | --- | ---: | ---: | ---: | ---: |\n" in text
    assert "| 96 | full | 16 | 4 | 4096 | **500** |\n\n" in text
    assert kernels.flash_variant_of(lines[0]["case"]) == "flash/5"
    assert "| 128 | causal | 16 | 4 | 4096 | **501** | 502 |\n\nTFLOP/s" in text


def test_check_fails_until_the_tables_are_written(root, capsys):
    pytest.importorskip("matplotlib")
    assert plot.main(["--root", str(root), "--check"]) == 1
    assert "README.md is not what results/ gives" in capsys.readouterr().out
    assert plot.main(["--root", str(root)]) == 0
    assert plot.main(["--root", str(root), "--check"]) == 0
    readme = root / "README.md"
    readme.write_text(readme.read_text().replace("12.3", "12.4", 1))
    assert plot.main(["--root", str(root), "--check"]) == 1
    assert (root / "docs/plots/attention-ladder.svg").stat().st_size > 1000


def test_a_lone_marker_is_an_error(root):
    (root / "README.md").write_text("<!-- results:attention-ladder begin -->\n")
    with pytest.raises(SystemExit, match="a marker without its other half"):
        rendered(root, root / "README.md")


def test_plot_of_any_file(root, tmp_path):
    pytest.importorskip("matplotlib")
    source = root / "results/attention-ladder.jsonl"
    arguments = ["--input", str(source), "--output-dir", str(tmp_path / "new/dir")]
    assert plot.main(arguments) == 0
    first = (tmp_path / "new/dir/attention-ladder.svg").read_bytes()
    assert (tmp_path / "new/dir/attention-ladder.png").read_bytes().startswith(b"\x89PNG")
    assert plot.main(arguments) == 0
    assert (tmp_path / "new/dir/attention-ladder.svg").read_bytes() == first


def test_columns_of_a_page():
    names = ["k1", "k2", "k3_1", "k3_2", "k4_qk", "k4"]
    results = Results([MEASURED | {"impl": f"tilewright/{name}"} for name in names])
    assert results.rung("k1") == ["k1"]
    assert results.rung("k3") == ["k2", "k3_1", "k3_2"]
    assert results.rung("k4") == ["k3_2", "k4_qk", "k4"]
    assert results.rung("k9") == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123, "0.12"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.9, "99.9"),
        (99.96, "100"),
        (None, "—"),
    ],
)
def test_number(value, text):
    assert number(value) == text


def test_the_documents_of_this_repository_are_up_to_date(capsys):
    assert plot.main(["--root", str(REPOSITORY), "--check"]) == 0, capsys.readouterr().out


def tick_labels(axis):
    """Those within view."""
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [label.get_text() for at, label in ticks if low <= at <= high]


@pytest.mark.parametrize("speeds", [(0.02, 0.09), (0.24, 0.31), (220, 838), (1.3, 838), (1, 1)])
def test_speeds_have_a_linear_axis_from_zero_with_plain_numbers(speeds):
    pytest.importorskip("matplotlib")
    figure, ((panel,),) = figures.new_figure(1, 1)
    panel.plot((512, 1024), speeds)
    figures.set_scales(panel, max(speeds))
    figure.canvas.draw()
    assert panel.get_yscale() == "linear"
    assert panel.get_ylim()[0] == 0 and max(speeds) < panel.get_ylim()[1] < 1.1 * max(speeds)
    labels = tick_labels(panel.yaxis)
    assert len(labels) >= 4
    assert [f"{float(label):g}" for label in labels] == labels


def test_lengths_are_plain_numbers():
    pytest.importorskip("matplotlib")
    figure, ((panel,),) = figures.new_figure(1, 1)
    panel.plot((256, 512, 1024, 2048), (1, 2, 3, 4))
    figures.set_scales(panel, 4)
    figure.canvas.draw()
    assert tick_labels(panel.xaxis) == ["256", "512", "1k", "2k"]
    assert not any(label.get_text() for label in panel.get_xticklabels(minor=True))


LADDER = {"k1": 2.0, "k2": 20.0, "k3_1": 25.0, "k3_2": 24.0, "k4": 300.0, "k5": 600.0,
          "flash": 791.52}  # fmt: skip


def ladder_of(root, speeds, **changes):
    """The lines that the ladder's marker gives for kernels of these speeds."""
    cases = ({"q_len": 16384, "kv_len": 16384}, {"q_len": 16384, "kv_len": 16384, "causal": True})
    lines = [
        with_case(MEASURED | {"impl": f"tilewright/{impl}", "tflops": speed * scale} | changes, **c)
        for c, scale in zip(cases, (1, 0.5), strict=True)
        for impl, speed in speeds.items()
    ]
    write_lines(root / "results/attention-ladder.jsonl", lines)
    (root / "README.md").write_text(block("ladder:attention-ladder"))
    return rendered(root, root / "README.md").splitlines()


def test_the_ladder_beside_the_peak(root):
    lines = ladder_of(root, LADDER)
    table = [line.split(" | ") for line in lines if line.startswith("|")]
    assert table[0][1:] == ["idea", "TFLOP/s", "× the one before", "% of peak |"]
    assert [[row[0], *row[2:]] for row in table[2:]] == [
        ["| `k1`", "2.00", "—", "0.20 |"],
        ["| `k2`", "20.0", "10.0", "2.02 |"],
        ["| `k3_1`", "25.0", "1.25", "2.53 |"],  # the fastest of its rung
        ["| `k4_qk`", "—", "—", "— |"],
        ["| `k4`", "300", "—", "30.3 |"],
        ["| `k5`", "600", "2.00", "60.6 |"],
        ["| `k6`", "—", "—", "— |"],
        ["| `flash`", "792", "—", "80.0 |"],
    ]
    assert all(len(row[1]) < 50 for row in table)
    footer = lines[-3]
    assert footer.startswith("BF16, head dim 128, full mask, length 16384, medians. Peak: 989.4 ")
    assert "NVIDIA H100 Tensor Core GPU Architecture" in footer
    assert footer.endswith("NVIDIA H200, driver 580.1, CUDA 13.0; run 2026-01-31T12:34:56Z "
                           "0123456789.")  # fmt: skip


def test_the_ladder_on_a_gpu_of_unknown_peak(root):
    lines = ladder_of(root, LADDER, gpu="NVIDIA H100 PCIe")
    assert "| `k2` | tiles and an online softmax in one launch | 20.0 | 10.0 | — |" in lines
    assert not any("Peak" in line for line in lines)


def test_a_ladder_that_is_not_measured_yet(root):
    (root / "README.md").write_text(block("ladder:later"))
    assert "begin -->\n\nNot measured yet.\n\n<!--" in rendered(root, root / "README.md")
