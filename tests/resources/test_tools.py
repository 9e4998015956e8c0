"""The parsers behind the resource checks, on reports and listings written out here."""

import json
import pathlib
import sys

import pytest

# Last, as tools has a profile, which the standard library has, too.
sys.path.append(str(pathlib.Path(__file__).parents[2] / "tools"))

import kernel_files
import resources
import sass

REPORT = """\
ptxas info    : 11 bytes gmem
ptxas info    : Compiling entry function '_ZN10tilewright4cuda2k35plainILi64EEEvPf' for 'sm_90a'
ptxas info    : Function properties for _ZN10tilewright4cuda2k35plainILi64EEEvPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 1.558 ms
ptxas info    : Compiling entry function '_Z4barePi' for 'sm_90a'
ptxas info    : Function properties for _Z4barePi
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 16 bytes cumulative stack size
"""

LISTING = """\
	code for sm_90a
		Function : _Z5plainILi64EEvPf
        /*0000*/                   LDC R1, c[0x0][0x28] ;              /* 0x00000a00ff017b82 */
                                                                       /* 0x000ff00000000800 */
        /*00d0*/                   HGMMA.64x8x16.F32.BF16 R24, gdesc[UR8], R24 ; /* 0x0 */
        /*0110*/              @!P0 HGMMA.64x8x16.F32.BF16 R24, gdesc[UR8], R24 ; /* 0x0 */
        /*0120*/              @UP1 UTMALDG.4D [UR4], [UR8] ;           /* 0x0 */
"""

PLAIN = {"registers": 10, "smem_bytes": 256, "stack_bytes": 0, "spill_bytes": 0}


def test_report_is_read(tmp_path):
    (tmp_path / "a.cu.o.ptxas").write_text(REPORT)
    assert resources.read_reports([tmp_path / "a.cu.o"]) == {
        "bare": {"registers": 8, "smem_bytes": 0, "stack_bytes": 16, "spill_bytes": 12},
        "tilewright::cuda::k3::plain<64>": PLAIN,
    }


def test_missing_report_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        resources.read_reports([tmp_path / "a.cu.o"])


@pytest.mark.parametrize(
    ("change", "budget", "expected"),
    [
        ({}, {"plain": PLAIN}, []),
        ({"registers": 9}, {"plain": PLAIN}, []),
        ({"registers": 11}, {"plain": PLAIN}, ["plain: registers is 11, its budget 10"]),
        ({"smem_bytes": 260}, {"plain": PLAIN}, ["plain: smem_bytes is 260, its budget 256"]),
        ({"stack_bytes": 8}, {"plain": PLAIN}, ["plain: stack_bytes is 8, must be 0"]),
        ({"spill_bytes": 8}, {"plain": PLAIN}, ["plain: spill_bytes is 8, must be 0"]),
        ({}, {}, ["plain: compiled, but not in the budget"]),
        (
            {},
            {"plain": PLAIN, "gone": PLAIN},
            ["gone: in the budget, but not compiled"],
        ),
    ],
)
def test_budget(change, budget, expected):
    assert resources.violations({"plain": PLAIN | change}, budget) == expected


def test_update_writes_the_budget_and_keeps_the_instructions(tmp_path, monkeypatch):
    (tmp_path / "a.cu.o.ptxas").write_text(REPORT[: REPORT.index("ptxas info    : Compile time")])
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "k3.json").write_text('{"instructions": {"plain": {"HGMMA": 2}}, "budget": {}}')
    (folder / "gone.json").write_text('{"instructions": {}, "budget": {}}')
    arguments = ["resources.py", "--kernels", str(folder), "--update", str(tmp_path / "a.cu.o")]
    monkeypatch.setattr("sys.argv", arguments)
    assert resources.main() == 0
    assert [path.name for path in folder.iterdir()] == ["k3.json"]
    assert json.loads((folder / "k3.json").read_text()) == {
        "instructions": {"plain": {"HGMMA": 2}},
        "budget": {"plain<64>": {"registers": 10, "smem_bytes": 256}},
    }
    plain = "tilewright::cuda::k3::plain"
    assert kernel_files.read_part(folder, "instructions") == {plain: {"HGMMA": 2}}


def test_instructions_are_counted():
    counts = sass.count_instructions(LISTING.splitlines())
    assert counts == {"_Z5plainILi64EEvPf": {"LDC": 1, "HGMMA": 2, "UTMALDG": 1}}


def test_missing_instruction_or_kernel_is_an_error():
    kernels = {"plain<64>": sass.count_instructions(LISTING.splitlines())["_Z5plainILi64EEvPf"]}
    assert sass.violations(kernels, {"plain": {"HGMMA": 2}}) == []
    assert sass.violations(kernels, {"plain": {"HGMMA": 3}, "gone": {}}) == [
        "plain<64>: 2 HGMMA, must be at least 3",
        "gone: not in these objects",
    ]
