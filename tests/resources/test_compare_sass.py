"""Comparing the code of two builds, on listings written out here."""

import json
import pathlib
import sys

import pytest

# Last, as tools has a profile, which the standard library has, too.
sys.path.append(str(pathlib.Path(__file__).parents[2] / "tools"))

import compare_sass
import normalised_sass

CODE = """\
LDC R1, c[0x0][0x28]
LDC.64 R8, c[0x0][0x308]
BSSY B0, 0x50
LDC R2, c[0x0][R8+0x2e0]
@!P0 BRA 0x10
BSYNC B0
IMAD R2, R8.reuse, 0x4, R2
LDC.64 R8, c[0x0][0x308]
EXIT
BRA 0x90
"""

TENSOR_MAP = """\
ULDC.64 UR4, c[0x0][0x198]
@P0 BRA 0x50
UIADD3 UR8, UP0, UR4, 0x1f0, URZ
UMOV UR4, 0x400
EXIT
UIADD3 UR6, UP1, UR4, 0x270, URZ
ULDC.64 UR4, c[0x4][0x8]
UIADD3 UR6, UP1, UR4, 0x10, URZ
"""


def listing(**functions: str) -> list[str]:
    """What cuobjdump prints of functions with this code."""
    lines = ["Fatbin elf code:", "\tcode for sm_90a"]
    for symbol, code in functions.items():
        lines.append(f"\t\tFunction : {symbol}")
        for i, text in enumerate(code.splitlines()):
            lines.append(f"        /*{16 * i:04x}*/   {text} ;   /* 0x{i:016x} */")
            lines.append("                                    /* 0x000fe20000000800 */")
    return lines


def normalised(code: str) -> list[str]:
    [(_, lines)] = normalised_sass.functions(listing(f=code))
    return lines


def compare(before: dict[str, str], after: dict[str, str], renames=()) -> dict[str, list]:
    builds = (lambda: listing(**before)), (lambda: listing(**after))
    return compare_sass.compare(*builds, list(renames))


def kinds(found: dict[str, list]) -> dict[str, int]:
    return {kind: len(rows) for kind, rows in found.items() if rows}


def test_code_is_normalised():
    assert normalised(CODE) == [
        "LDC R1, c[0x0][0x28]",
        "LDC.64 R8, c[0x0][param_0]",
        "BSSY B0, L_0",
        "LDC R2, c[0x0][R8+param_1]",
        "@!P0 BRA -0x30",
        "L_0:",
        "BSYNC B0",
        "IMAD R2, R8.reuse, 0x4, R2",
        "LDC.64 R8, c[0x0][param_0]",
        "EXIT",
        "BRA +0x0",
    ]


def test_offsets_of_tensor_maps_are_normalised():
    assert normalised(TENSOR_MAP) == [
        "ULDC.64 UR4, c[0x0][0x198]",
        "@P0 BRA L_0",
        "UIADD3 UR8, UP0, UR4, param_address_0, URZ",
        "UMOV UR4, 0x400",
        "EXIT",
        "L_0:",
        "UIADD3 UR6, UP1, UR4, param_address_1, URZ",
        "ULDC.64 UR4, c[0x4][address_0]",
        "UIADD3 UR6, UP1, UR4, 0x10, URZ",
    ]


@pytest.mark.parametrize(
    "write",
    [
        "ULDC.128 UR1, c[0x0][0x220]",
        "UMOV UR4, 0x1",
        "@P1 R2UR UR4, R3",
        "UIMAD.WIDE UR3, UR1, UR1",
    ],
)
def test_a_register_that_was_written_holds_no_address(write):
    code = f"ULDC.64 UR4, c[0x0][0x198]\n{write}\nUIADD3 UR6, UP1, UR4, 0x40, URZ\n"
    assert normalised(code)[-1] == "UIADD3 UR6, UP1, UR4, 0x40, URZ"


def test_names_of_symbols_are_normalised():
    code = "MOV R4, 32@lo(here)\nMOV R5, 32@hi(here)\nMOV R6, 32@lo(there)\nCALL.ABS `(there)\n"
    assert normalised(code) == [
        "MOV R4, 32@lo(name_0)",
        "MOV R5, 32@hi(name_0)",
        "MOV R6, 32@lo(name_1)",
        "CALL.ABS `(name_1)",
    ]


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("", "", True),
        ("0x308", "0x408", True),  # both loads, still of one parameter
        ("0x2e0", "0x2e8", True),
        ("0x2e0", "0x308", False),  # two parameters have become one
        ("0x28]", "0x24]", False),  # no parameter
        ("IMAD", "IMAD.HI", False),
        ("R8.reuse", "R8", False),
        ("0x4,", "0x8,", False),
        ("@!P0 BRA", "@P0 BRA", False),
        ("BRA 0x10", "BRA 0x20", False),
        ("B0, 0x50", "B0, 0x60", False),
        ("EXIT\n", "", False),
    ],
)
def test_what_counts_as_the_same(old, new, is_same):
    assert old in CODE
    found = compare({"f": CODE}, {"f": CODE.replace(old, new)})
    assert kinds(found) == ({"same": 1} if is_same else {"differ": 1})


def test_functions_are_paired_by_name_then_by_code():
    before = {"_ZN3old1fEi": CODE, "_ZN3old1gEi": CODE + "NOP\n", "h": "EXIT\n"}
    after = {"_ZN3old1fEi": CODE, "_ZN3new1gEi": CODE + "NOP\n", "i": "NOP\n"}
    found = compare(before, after)
    assert found["same"] == ["old::f"]
    assert found["renamed"] == [{"before": "old::g", "after": "new::g"}]
    assert (found["only_before"], found["only_after"]) == (["h"], ["i"])
    assert not found["differ"]


def test_names_are_mapped_before_they_are_paired():
    before, after = {"_ZN3old1fEi": CODE}, {"_ZN3new1fEi": CODE + "NOP\n", "g": CODE}
    assert kinds(compare(before, after)) == {"renamed": 1, "only_after": 1}
    found = compare(before, after, [("old", "mid"), ("mid::", "new::")])
    assert kinds(found) == {"differ": 1, "only_after": 1}
    assert found["differ"][0]["name"] == "new::f"


def test_functions_of_one_name_are_paired_by_code():
    lines = [listing(f=CODE) + listing(f="EXIT\n"), listing(f="EXIT\n") + listing(f=CODE)]
    found = compare_sass.compare(lambda: lines[0], lambda: lines[1], [])
    assert kinds(found) == {"same": 2}


def test_the_first_difference_is_told():
    added = CODE.replace("BSYNC B0\n", "BSYNC B0\nNOP\n").replace("0x90", "0xa0")
    row = compare({"f": CODE}, {"f": added})["differ"][0]
    assert row["instructions"] == {"before": 10, "after": 11}
    expected = {"at": 6, "before": "IMAD R2, R8.reuse, 0x4, R2", "after": "NOP"}
    assert row["difference"] == expected | {"lines_gone": 0, "lines_new": 1}
    row = compare({"f": CODE}, {"f": CODE + "NOP\n"})["differ"][0]
    assert (row["difference"]["before"], row["difference"]["after"]) == ("the end", "NOP")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """compare_sass.py on listings in the place of cuobjdump's; its exit status and JSON."""

    def run(before: dict[str, str], after: dict[str, str], *options: str):
        builds = {"before": listing(**before), "after": listing(**after)}
        for build in builds:
            (tmp_path / build).touch()
        monkeypatch.setattr(
            compare_sass.sass, "disassemble", lambda _, path, *options: builds[path.name]
        )
        output = tmp_path / "found.json"
        arguments = [str(tmp_path / "before"), str(tmp_path / "after"), "--json", str(output)]
        monkeypatch.setattr(
            sys, "argv", ["compare_sass.py", *arguments, "--cuobjdump", "cuobjdump", *options]
        )
        status = compare_sass.main()
        return status, json.loads(output.read_text())

    return run


def test_the_status_says_whether_all_is_the_same(run, capsys):
    status, found = run({"f": CODE}, {"f": CODE})
    assert status == 0
    assert found == {
        "same": ["f"],
        "renamed": [],
        "differ": [],
        "only_before": [],
        "only_after": [],
    }
    assert run({"f": CODE}, {"g": CODE})[0] == 0
    assert run({"f": CODE}, {"f": "EXIT\n"})[0] == 1
    assert "differ: f, 10 -> 1 instructions" in capsys.readouterr().out
    assert run({"f": CODE}, {})[0] == 1
    assert run({}, {"f": CODE})[0] == 1


def test_builds_without_code_are_an_error(run):
    with pytest.raises(SystemExit, match="no code for sm_90a"):
        run({}, {})


@pytest.mark.parametrize("rename", ["old", "=new"])
def test_a_rename_needs_both_names(run, rename, capsys):
    with pytest.raises(SystemExit):
        run({"f": CODE}, {"f": CODE}, "--rename", rename)
    assert f"--rename is '{rename}', must be OLD=NEW" in capsys.readouterr().err


def test_the_library_of_a_build_folder_is_compared(tmp_path):
    assert compare_sass.device_code(tmp_path / "x.o") == [tmp_path / "x.o"]
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cu.o").touch()
    assert compare_sass.device_code(tmp_path) == [tmp_path / "src" / "a.cu.o"]
    for folder in ("an/installed/one", "src"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "libtilewright.a").touch()
    assert compare_sass.device_code(tmp_path) == [tmp_path / "src" / "libtilewright.a"]
