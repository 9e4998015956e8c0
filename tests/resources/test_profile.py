"""tools/profile.py and tools/gpu on an Nsight Compute made up here."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("tools_profile", REPOSITORY / "tools/profile.py")
profile = importlib.util.module_from_spec(spec)  # not by name: the standard library has a profile
spec.loader.exec_module(profile)

KERNELS = [
    {"name": "cpu", "doc": "docs/architecture.md"},
    {"name": "k1", "doc": "docs/worklog/k1.md"},
    {"name": "k4", "doc": "docs/worklog/k4.md"},
    {"name": "flash", "doc": "docs/worklog/flash.md"},
]
CLI = f"""\
#!/bin/sh
case $1 in
  list) echo '{json.dumps(KERNELS)}' ;;
  *) echo "tilewright 0.1.0 (0123456789)" ;;
esac
"""

# It knows no metric on gmma, has no value for L2's hits, and 1,500 for all others.
NCU = f"""\
#!{sys.executable}
import sys
metrics = sys.argv[sys.argv.index("--metrics") + 1].split(",")
unknown = [metric for metric in metrics if "gmma" in metric]
if unknown:
    sys.exit("==ERROR== Failed to find metric " + unknown[0])
print(" ".join(sys.argv))
units = {{"gpu__time_duration.sum": "ns", "dram__bytes.sum": "Kbyte"}}
rows = [["ID", "Kernel Name", *metrics]]
rows += [["", "", *(units.get(metric, "%") for metric in metrics)]]
values = ["n/a" if "hit_rate" in metric else "1,500" for metric in metrics]
for launch in range(int(sys.argv[sys.argv.index("--launch-count") + 1])):
    rows += [[str(launch), f"void flash<{{launch}}>(Params)", *values]]
for row in rows:
    print(",".join(f'"{{cell}}"' for cell in row))
"""


@pytest.fixture
def tools(tmp_path):
    """The environment of tools/gpu, with both programs in it."""
    for path, text in {"ncu": NCU, "build/cli/tilewright": CLI}.items():
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    variables = {"BUILD": tmp_path / "build", "OUT": tmp_path / "out", "PYTHON": sys.executable}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {name: str(value) for name, value in variables.items()} | {"PATH": path}


def call(tools, *arguments):
    command = [REPOSITORY / "tools/gpu", *arguments]
    return subprocess.run(command, env=tools, capture_output=True, text=True, check=False)


def run(tools, *arguments):
    """What tools/gpu wrote, and what it said."""
    result = call(tools, *arguments)
    assert result.returncode == 0, result.stderr
    (path,) = pathlib.Path(tools["OUT"], "profiles").iterdir()
    return path.name, [json.loads(line) for line in path.read_text().splitlines()], result.stderr


@pytest.mark.parametrize("kernels", [[], ["--kernels", "k1,k4"]])
def test_the_ladder(tools, kernels):
    name, lines, _ = run(tools, "profile", *kernels)
    assert name == "attention-ladder.jsonl"
    assert [line["impl"] for line in lines] == ["tilewright/k1"] * 3 + ["tilewright/k4"]
    assert {line["case"]["q_len"] for line in lines} == {4096}
    assert all(line["run"].endswith("Z 0123456789") for line in lines)


def test_flash_on_several_shapes(tools):
    name, lines, _ = run(tools, "profile-flash")
    assert name == "attention-flash.jsonl"
    cases = [(line["case"]["head_dim"], line["case"]["causal"], line["case"]["q_len"])
             for line in lines]  # fmt: skip
    assert cases == [
        (64, True, 512),
        (128, False, 512),
        (128, True, 2048),
        (256, False, 512),
        (256, False, 2048),
        (256, False, 8192),
        (256, True, 2048),
        (256, True, 8192),
    ]
    for line in lines:
        case = line["case"]
        assert case["batch"] * case["q_len"] == 16384
        assert case["heads"] * case["head_dim"] == 2048
        assert line["launch"] == "void flash<0>"


def test_gemms(tools, tmp_path):
    log = tmp_path / "log"
    (tmp_path / "ncu").write_text(NCU.replace("print(", f"open({str(log)!r}, 'a').write(", 1))
    name, lines, _ = run(tools, "profile-gemm", "--gemms", "16,7168,2048", "1,64,128,fp16")
    assert name == "gemm-nvfp4.jsonl"
    assert [line["operation"] for line in lines] == ["gemm_nvfp4"] * 2
    assert [(line["case"]["m"], line["case"]["n"], line["case"]["k"]) for line in lines] == [
        (16, 7168, 2048),
        (1, 64, 128),
    ]
    assert [line["case"]["a_dtype"] for line in lines] == ["bf16", "fp16"]
    command = "tilewright gemm --m 1 --n 64 --k 128 --a-dtype fp16 --dtype fp16 --kernel nvfp4"
    assert f"{command} --samples 1" in log.read_text()


def test_gemms_by_default(tools):
    _, lines, _ = run(tools, "profile-gemm")
    cases = [line["case"] for line in lines]
    assert len({json.dumps(case) for case in cases}) == len(cases) == 13
    assert [case["out_dtype"] for case in cases].count("fp16") == 1


def test_activations_in_nvfp4_have_results_in_bf16():
    case = profile.parse_gemm("1,64,128,nvfp4")
    assert (case["a_dtype"], case["out_dtype"]) == ("nvfp4", "bf16")


def test_counters_in_our_units(tools):
    _, lines, _ = run(tools, "profile-flash", "--shapes", "64,full,512,1,2")
    (line,) = lines
    assert line["duration_us"] == 1.5
    assert line["dram_bytes"] == 1.5e6
    assert line["tensor_pct"] == 1500
    assert set(profile.METRICS) < set(line)


def test_what_the_machine_does_not_have_is_null(tools):
    _, (line,), said = run(tools, "profile-flash", "--shapes", "64,full,512,1,2")
    empty = {name for name in profile.METRICS if line[name] is None}
    assert empty == {"gmma_instructions", "stall_gmma", "l2_hit_pct"}
    assert "left out: stall_gmma, smsp__average_warps_issue_stalled_gmma" in said
    assert "null in every line: gmma_instructions, l2_hit_pct, stall_gmma" in said


def test_another_failure_is_an_error(tools, tmp_path):
    (tmp_path / "ncu").write_text("#!/bin/sh\necho '==ERROR== no permission' >&2\nexit 1\n")
    result = call(tools, "profile-flash")
    assert result.returncode == 1
    assert "ncu failed with flash:\n==ERROR== no permission" in result.stderr


def test_one_metric_is_not_taken_for_another():
    metrics = {"long": "l1tex__waves_mem_shared.avg.pct", "short": "l1tex__waves.avg.pct"}
    assert profile.unknown_metrics("no l1tex__waves_mem_shared here", metrics) == ["long"]
    assert profile.unknown_metrics("no l1tex__waves.avg here", metrics) == ["short"]


@pytest.mark.parametrize("text", ["64,full,512,1", "64,half,512,1,2", "64,full,x,1,2", ""])
def test_a_shape_that_is_none(text):
    with pytest.raises(profile.argparse.ArgumentTypeError, match="must be head dim,full or causal"):
        profile.parse_shape(text)


@pytest.mark.parametrize("text", ["64,64", "64,64,x", "1,2,3,4", "1,2,3,fp16,", ""])
def test_a_gemm_that_is_none(text):
    with pytest.raises(profile.argparse.ArgumentTypeError, match="must be M,N,K"):
        profile.parse_gemm(text)


def test_the_function_names_are_ours():
    pattern = profile.re.compile(profile.OUR_FUNCTIONS)
    for name in ("flash", "k2", "k6", "scores", "softmax", "output", "nvfp4"):
        assert pattern.search(name)
    for name in ("flash_fwd_kernel", "nvfp4_simple", "vectorized_elementwise_kernel", "merge"):
        assert not pattern.search(name)


def test_every_counter_has_a_name_in_the_tables():
    tables = pytest.importorskip("tilewright.plot.tables")
    assert list(tables.COUNTERS) == list(profile.METRICS)
