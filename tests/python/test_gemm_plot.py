"""Tables and plots of GEMMs from results made up here."""

import json

import pytest

from test_results import GEMM, MEASURED, UNSUPPORTED, with_case
from tilewright.plot import __main__ as plot
from tilewright.plot import figures, gemm, headline
from tilewright.plot.documents import rendered
from tilewright.plot.gemm import GemmResults

TIMES = {"tilewright/nvfp4": 10.0, "cublas": 40.0, "humming": 20.0}


def lines_of(times, **case):
    """Of one case; times are those of 16 tokens."""
    scale = case.get("m", 16) / 16
    return [
        with_case(GEMM | {"impl": impl, "median_us": time * scale}, **case)
        for impl, time in times.items()
    ]


def test_the_table_of_configs(root):
    kernels = pytest.importorskip("tilewright._kernels")
    lines = [
        with_case(GEMM | {"impl": f"tilewright/nvfp4/{config}", "median_us": 10.0 + config}, m=m)
        for m in (8, 16)
        for config in range(3)
    ]
    write(root, lines)
    page = root / "docs/worklog/page.md"
    page.write_text("<!-- gemm-configs:gemm-race begin -->\n<!-- gemm-configs:gemm-race end -->\n")
    text = rendered(root, page)
    weight = f"{lines[0]['case']['n']} × {lines[0]['case']['k']}"
    assert f"| {weight}, M | `nvfp4/0` | `nvfp4/1` | `nvfp4/2` |\n" in text
    assert kernels.nvfp4_variant_of(lines[0]["case"]) == "nvfp4/0"
    assert "| 8 | **10.0** | 11.0 | 12.0 |\n| 16 | 10.0 | 11.0 | **12.0** |\n\nµs" in text


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs/worklog").mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    names = ("gemm:gemm-race", "plot:gemm-race", "gemm:later", "plot:later")
    text = "".join(f"<!-- {name} begin -->\n<!-- {name} end -->\n" for name in names)
    (tmp_path / "docs/worklog/page.md").write_text(text)
    return tmp_path


def write(root, lines, name="gemm-race"):
    path = root / f"results/{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def table_of(root):
    text = rendered(root, root / "docs/worklog/page.md")
    return text, [line for line in text.splitlines() if line.startswith("|")]


def test_a_race_beside_peers(root):
    slower = lines_of(TIMES | {"tilewright/nvfp4": 80.0}, m=64)
    refused = with_case(UNSUPPORTED | {"operation": "gemm_nvfp4", "impl": "humming"})
    refused["case"] = lines_of(TIMES, m=256, n=8192)[0]["case"]
    write(root, lines_of(TIMES) + slower + lines_of(TIMES, m=256, n=8192)[:2] + [refused])
    text, table = table_of(root)
    assert table == [
        "| N × K | M | `nvfp4` | `cublas` | `humming` | to best peer | weight, GB/s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 4096 × 7168 | 16 | 10.0 | 40.0 | 20.0 | 2.000 | 1652 |",
        "| 4096 × 7168 | 64 | 320 | 160 | 80.0 | 0.250 | 51.6 |",
        "| 8192 × 7168 | 256 | 160 | 640 | — | 4.000 | 206 |",
    ]
    assert "Activations in BF16:\n" in text
    mean = "1.260"  # the cube root of 2
    assert f"Geometric mean of the ratios to the best peer, 3 points: {mean}.\n" in text
    assert "µs, medians. NVIDIA H200, driver 580.1, CUDA 13.0; run 2026-01-31" in text
    assert "![gemm-race](../plots/gemm-race.svg)\n" in text


def test_goals_beside_what_is_reached(root):
    at_128 = lines_of(TIMES | {"tilewright/nvfp4": 25.0}, n=8192, k=8192, m=128)
    w4a4 = lines_of({"tilewright/nvfp4": 10.5, "cublas": 40.0}, a_dtype="nvfp4")
    not_of_the_goals = lines_of({"tilewright/nvfp4": 9.0, "humming": 0.9}, m=32)
    large = lines_of({"tilewright/nvfp4": 40.0, "cublas": 40.0}, m=1024)
    write(root, lines_of(TIMES) + at_128 + w4a4 + not_of_the_goals + large)
    page = root / "docs/worklog/page.md"
    page.write_text("<!-- goals:gemm-race begin -->\n<!-- goals:gemm-race end -->\n")
    _, table = table_of(root)
    assert table[:5] == [
        "|  | points | goal | reached | met |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| BF16: geometric mean, to best peer | 3 of 28 | at least 1.25 | 1.170 | no |",
        "| BF16: behind the best peer | 3 of 28 | at most 0 | 1 | no |",
        "| FP16: behind the best peer | 0 of 28 | at most 0 | — | — |",
    ]
    assert "| BF16, 8192 × 8192, M 128: to best peer | 1 | at least 1.4 | 0.800 | no |" in table
    assert table[-3:] == [
        "| BF16, M 1024 and 4096: least, to cuBLAS | 1 of 8 | at least 0.97 | 1.000 | yes |",
        "| NVFP4, M 1024 and 4096: least, to cuBLAS | 0 of 8 | at least 0.85 | — | — |",
        "| NVFP4, M 1 and 16: most µs above BF16 | 1 of 8 | at most 0 | 0.5 | no |",
    ]


def test_kinds_of_activations_have_their_own_tables(root):
    w4a4 = {"tilewright/nvfp4": 12.0, "cublas": 48.0}
    write(root, lines_of(TIMES) + lines_of(w4a4, a_dtype="nvfp4"))
    text, table = table_of(root)
    assert "Activations in NVFP4, result in bf16:\n" in text
    assert "| N × K | M | `nvfp4` | `cublas` | to best peer | weight, GB/s |" in table
    assert text.count("Geometric mean") == 2


def test_gemms_with_features_have_their_own_tables(root):
    chain = lines_of({"tilewright/nvfp4": 12.0, "cublas": 24.0}, rmsnorm=True)
    write(root, lines_of(TIMES) + lines_of(TIMES, batch_invariant=True) + chain)
    text, table = table_of(root)
    assert "Activations in BF16:\n" in text
    assert "Activations in BF16, batch-invariant:\n" in text
    assert "RMSNorm, activations in BF16:\n" in text
    assert [row.split(" | ")[2:4] for row in table if row.startswith("| 4096")] == [
        ["10.0", "40.0"],
        ["10.0", "40.0"],
        ["12.0", "24.0"],
    ]


def test_steps_have_no_ratio(root):
    write(root, lines_of({"tilewright/gemm_naive": 9000.0, "tilewright/nvfp4": 10.0}))
    text, table = table_of(root)
    assert table[0] == "| N × K | M | `gemm_naive` | `nvfp4` |"
    assert table[2] == "| 4096 × 7168 | 16 | 9000 | 10.0 |"
    assert "Geometric mean" not in text


def test_what_is_not_measured_says_so(root):
    text, _ = table_of(root)
    assert text.count("Not measured yet.") == 2
    assert "<!-- plot:later begin -->\n<!-- plot:later end -->" in text


def test_the_plot(root):
    pytest.importorskip("matplotlib")
    write(root, lines_of(TIMES) + lines_of(TIMES, m=64) + lines_of(TIMES, a_dtype="nvfp4", n=512))
    assert plot.main(["--root", str(root)]) == 0
    stem = root / "docs/plots/gemm-race"
    svg = stem.with_suffix(".svg").read_bytes()
    assert len(svg) > 1000
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert plot.main(["--root", str(root)]) == 0
    assert stem.with_suffix(".svg").read_bytes() == svg


def test_the_ratio_takes_the_fastest_of_each_side():
    times = {"tilewright/nvfp4": 10.0, "tilewright/nvfp4_simple": 8.0, "a": 16.0, "b": 24.0}
    results = GemmResults(lines_of(times))
    ((gemm,),) = results.kinds.values()
    assert results.speedup(gemm) == 2
    assert GemmResults(lines_of({"tilewright/nvfp4": 10.0})).speedup(gemm) is None


def test_kinds_and_weights_keep_their_order_and_a_weights_gemms_stand_by_m(root):
    first, second = ({"n": 64, "k": 256}, {"n": 64, "k": 128})
    lines = [
        line
        for case in (
            first | {"m": 16},
            second | {"m": 16},
            first | {"m": 1},
            first | {"m": 16, "a_dtype": "fp16", "out_dtype": "fp16"},
            first | {"m": 1, "a_dtype": "nvfp4"},
        )
        for line in lines_of(TIMES, **case)
    ]
    kinds = GemmResults.read(write(root, lines)).kinds
    assert [[(p.k, p.m) for p in gemms] for gemms in kinds.values()] == [
        [(256, 1), (256, 16), (128, 16)],
        [(256, 16)],
        [(256, 1)],
    ]
    assert list(kinds)[1] == "Activations in FP16"


def curves(figure):
    """Of each panel: label -> [(x, y)]."""
    return [
        {line.get_label(): [tuple(map(float, xy)) for xy in line.get_xydata()] for line in p.lines}
        for p in figure.axes
    ]


def test_a_race_is_plotted_relative_to_the_first_peer(root, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "save", lambda figure, stem: figure)
    lines = lines_of(TIMES) + lines_of(TIMES | {"humming": 80.0}, m=1024)
    lines += lines_of({"tilewright/nvfp4": 5.0, "humming": 20.0}, m=64)  # without cuBLAS
    figure = gemm.plot_gemm(GemmResults(lines), root / "plot")
    (panel,) = figure.axes
    assert curves(figure) == [
        {
            "nvfp4": [(16.0, 4.0), (1024.0, 4.0)],
            "cublas": [(16.0, 1.0), (1024.0, 1.0)],
            "humming": [(16.0, 2.0), (1024.0, 0.5)],
        }
    ]
    assert panel.get_yscale() == "linear" and panel.get_ylim()[0] == 0
    assert panel.get_ylabel() == "speed, cublas = 1"


def test_steps_are_plotted_in_tflops(root, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "save", lambda figure, stem: figure)
    figure = gemm.plot_gemm(GemmResults(lines_of({"tilewright/nvfp4": 10.0})), root / "plot")
    (panel,) = figure.axes
    tflops = 2 * 16 * 4096 * 7168 / 10e-6 * 1e-12
    assert curves(figure) == [{"nvfp4": [(16.0, pytest.approx(tflops))]}]
    assert panel.get_ylabel() == "TFLOP/s"


@pytest.fixture
def headline_races(root):
    """Attention that is 1.2 and 0.9 times as fast as the best peer, and GEMMs 2 and 0.5 times. One
    peer was not timed with 32 tokens. Of other activations and features nothing counts."""
    attention = [
        with_case(MEASURED | {"impl": impl, "impl_version": f"{impl} 9", "tflops": speed}, **case)
        for case, ours in (({}, 120.0), ({"causal": True, "q_len": 512, "kv_len": 512}, 90.0))
        for impl, speed in (("tilewright/flash", ours), ("cudnn", 100.0), ("fa3", 80.0))
    ]
    half = {"tilewright/nvfp4": 10.0, "cublas": 5.0, "humming": 20.0}
    gemms = [
        *lines_of(TIMES),
        *lines_of({"tilewright/nvfp4": 10.0, "cublas": 40.0}, m=32),
        *lines_of(half, m=1024),
        *lines_of(half, a_dtype="nvfp4"),
        *lines_of(half, rmsnorm=True),
    ]
    return [write(root, attention, "attention-race"), write(root, gemms)]


MARKER = "headline:attention-race,gemm-race"
HEADLINE = f"<!-- {MARKER} begin -->\n<!-- {MARKER} end -->\n"


def test_the_headlines_caption(root, headline_races):
    page = root / "docs/worklog/page.md"
    page.write_text(HEADLINE)
    _, image, caption, _ = rendered(root, page).split("\n\n")
    assert image == "![headline](../plots/headline.svg)"
    assert caption == (
        "Geometric means: attention 1.039 × the best of cuDNN and FlashAttention-3 on 2 shapes; "
        "GEMMs with NVFP4 weights and BF16 activations 1.000 × the best of cuBLAS and Humming on "
        "2 shapes (without M 32, where not every peer was timed). Peers: cuDNN (cudnn 9), "
        "FlashAttention-3 (fa3 9), cuBLAS (0123456789), Humming (0123456789). NVIDIA H200, driver "
        "580.1, CUDA 13.0; run 2026-01-31T12:34:56Z 0123456789."
    )


def test_a_headline_whose_gemms_have_no_peers_has_a_dash(root, headline_races):
    attention, gemms = headline_races
    write(root, lines_of({"tilewright/nvfp4": 10.0}))
    caption = headline.headline_caption([attention, gemms])
    assert "BF16 activations — × the best of" in caption
    assert "without M" not in caption


def test_the_headlines_figure(headline_races, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(headline, "save", lambda figure, stem: figure)
    figure = headline.plot_headline(headline_races, tmp_path / "headline")
    figure.canvas.draw()
    shapes, _ = figure.axes
    bars = [(bar.get_y(), bar.get_height()) for bar in shapes.patches]
    assert bars == [(0, 1), (1, pytest.approx(0.2)), (0, pytest.approx(0.9)), (1, 0)]
    assert [label.get_text() for label in shapes.get_xticklabels()] == ["128\nfull", "128\ncausal"]
    assert shapes.get_xlabel().endswith("lengths, 512 to 4k")
    assert curves(figure)[1]["4096 × 7168"] == [(16.0, 2.0), (1024.0, 0.5)]
    for panel in figure.axes:
        assert panel.get_yscale() == "linear"
        assert panel.get_ylim() == (0, pytest.approx(2.12))
        labels = [label.get_text() for label in panel.get_yticklabels()]
        assert "1" in labels and all(label == f"{float(label):g}" for label in labels)
    titles = [panel.get_title("left") for panel in figure.axes]
    assert titles == ["Attention, forward: 1.039 ×", "GEMM, NVFP4 weights: 1.000 ×"]
    assert figure.get_suptitle().startswith("NVIDIA H200: ")


def test_the_headline_is_drawn_where_a_document_asks_for_it(root, headline_races):
    pytest.importorskip("matplotlib")
    svg = root / "docs/plots/headline.svg"
    assert plot.main(["--root", str(root)]) == 0
    assert not svg.exists()
    later = HEADLINE.replace("gemm-race", "later")
    (root / "README.md").write_text(later)
    assert plot.main(["--root", str(root)]) == 0
    assert not svg.exists() and (root / "README.md").read_text() == later
    (root / "README.md").write_text(HEADLINE)
    assert plot.main(["--root", str(root)]) == 0
    first = svg.read_bytes()
    assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert plot.main(["--root", str(root)]) == 0
    assert svg.read_bytes() == first
    assert b"<dc:date>" not in first and b"Matplotlib" not in first
