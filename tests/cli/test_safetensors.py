"""tilewright gemm --weights: checkpoints as they should be, cut off, and inconsistent."""

import json
import math
import random
import shlex
import struct

import pytest

PASS, MISMATCH, USAGE, _ = range(4)
N, K = 48, 128
LAYER = "model.layers.0.q"


def modelopt(layer=LAYER):
    """Tensors by name: dtype, shape, bytes."""
    generator = random.Random(1)
    return {
        f"{layer}.weight": ("U8", [N, K // 2], generator.randbytes(N * K // 2)),
        f"{layer}.weight_scale": (
            "F8_E4M3",
            [N, K // 16],
            bytes(generator.randrange(0x50) for _ in range(N * K // 16)),
        ),
        f"{layer}.weight_scale_2": ("F32", [], struct.pack("<f", 0.01)),
    }


def compressed_tensors(layer=LAYER):
    weight, scale, _ = modelopt(layer).values()
    return {
        f"{layer}.weight_packed": weight,
        f"{layer}.weight_scale": scale,
        f"{layer}.weight_global_scale": ("F32", [1], struct.pack("<f", 100.0)),
    }


def file_of(header, data):
    return struct.pack("<Q", len(header)) + header.encode() + data


def safetensors(tensors, **changes):
    """A file's bytes; `changes` replace fields of the scale's entry in the header."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    header[f"{LAYER}.weight_scale"] |= changes
    return file_of(json.dumps(header), data)


@pytest.fixture
def gemm(cli, tmp_path):
    def run(content, *arguments, tensor=LAYER):
        path = tmp_path / "a model.safetensors"
        path.write_bytes(content)
        case = ["--m", "7", "--gap", "0", "--samples", "5", "--weights", path]
        return cli("gemm", *case, "--tensor", tensor, *arguments)

    return run


def with_global_scale(tensors, values, shape):
    """The same tensors with other global scales, which come last."""
    *_, name = tensors
    return tensors | {name: ("F32", shape, struct.pack(f"<{len(values)}f", *values))}


@pytest.mark.parametrize("tensors", [modelopt(), compressed_tensors()])
def test_checkpoints_are_read_in_their_own_convention(gemm, tmp_path, tensors):
    path = tmp_path / "gemm.jsonl"
    result = gemm(safetensors(tensors), "--check", "--json", path)
    assert result.returncode == PASS, result.stderr
    assert "ok: relative" in result.stdout
    case = json.loads(path.read_text())["case"]
    assert (case["n"], case["k"]) == (N, K)


def test_a_global_scale_multiplies_or_divides_as_its_name_says(gemm):
    for tensors, too_large, small in ((modelopt(), 1e9, 1e-4), (compressed_tensors(), 1e-9, 1e4)):
        for scale, code in ((too_large, MISMATCH), (small, PASS)):
            content = safetensors(with_global_scale(tensors, [scale], [1]))
            result = gemm(content, "--check", "--dtype", "fp16")
            assert result.returncode == code, result.stdout + result.stderr
            assert ("FAILED" in result.stdout) == (code == MISMATCH)


@pytest.mark.parametrize("tensors", [modelopt(), compressed_tensors()])
@pytest.mark.parametrize("shape", [[], [1], [N], [N, 1]])
@pytest.mark.parametrize("layout", ["linear", "swizzled"])
@pytest.mark.parametrize("a_dtype", ["fp16", "nvfp4"])
def test_global_scales_are_of_the_matrix_or_of_its_rows(gemm, tensors, shape, layout, a_dtype):
    values = [0.25 + row for row in range(N if N in shape else 1)]
    content = safetensors(with_global_scale(tensors, values, shape))
    case = ["--a-dtype", a_dtype, "--dtype", "fp32", "--scale-layout", layout]
    for form in ([], ["--prepack"]):
        result = gemm(content, "--check", *case, *form)
        assert result.returncode == PASS, result.stdout + result.stderr
        assert "ok: relative" in result.stdout


@pytest.mark.parametrize("shape", [[2], [N - 1], [1, N], [1, 1], [N, 2], [N, 1, 1], [0]])
def test_global_scales_of_another_shape_are_refused(gemm, shape):
    values = [1.0] * math.prod(shape)
    for tensors in (modelopt(), compressed_tensors()):
        result = gemm(safetensors(with_global_scale(tensors, values, shape)))
        assert result.returncode == USAGE
        *_, name = tensors
        described = ", ".join(map(str, shape))
        assert f"tensor '{name}' is F32 of shape ({described}), must be" in result.stderr
        assert "F32 of shape (), (1), (48) or (48, 1)" in result.stderr


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf])
def test_global_scales_that_are_not_positive_and_finite_are_refused(gemm, value):
    for tensors in (modelopt(), compressed_tensors()):
        *_, name = tensors
        for values, where in (([value], ""), ([1.0] * 30 + [value] * (N - 30), " in row 30")):
            result = gemm(safetensors(with_global_scale(tensors, values, [len(values)])))
            assert result.returncode == USAGE
            assert f"--tensor: tensor '{name}' has the value " in result.stderr
            assert f"{value:g}{where}, must be positive and finite" in result.stderr


@pytest.mark.parametrize("a_dtype", ["bf16", "nvfp4"])
@pytest.mark.parametrize("form", [[], ["--prepack"]])
def test_a_result_without_finite_values_fails_the_check(cli, gemm, tmp_path, a_dtype, form):
    _, scale, _ = tensors = modelopt()
    path = tmp_path / "gemm.jsonl"
    for rows, code in ((N, MISMATCH), (N - 1, PASS)):
        dtype, shape, content = tensors[scale]
        not_a_number = b"\x7f" * (rows * K // 16)
        spoiled = {scale: (dtype, shape, not_a_number + content[len(not_a_number) :])}
        case = ["--a-dtype", a_dtype, "--check", "--json", path, *form]
        result = gemm(safetensors(tensors | spoiled), *case)
        assert result.returncode == code, result.stdout + result.stderr
        failed = "FAILED: wrong result: the right result has no finite value" in result.stdout
        assert failed == (rows == N)
        assert ("ok: relative" in result.stdout) == (rows != N)
        assert json.loads(path.read_text())["supported"] == (rows != N)
        if failed:
            _, _, command = result.stdout.partition("  reproduce: ")
            again = cli(*shlex.split(command.splitlines()[0])[1:])
            assert again.stdout == result.stdout


def test_a_file_cut_off_anywhere_is_refused(gemm):
    whole = safetensors(modelopt())
    header_end = 8 + struct.unpack("<Q", whole[:8])[0]
    for size, message in (
        (0, "has 0 bytes, fewer than the 8"),
        (7, "has 7 bytes"),
        (header_end - 1, "fewer than its header"),
        (header_end, f"tensor '{LAYER}.weight' ends at byte"),
        (len(whole) - 5, f"tensor '{LAYER}.weight_scale' ends at byte"),
        (len(whole) - 1, f"tensor '{LAYER}.weight_scale_2' ends at byte"),
    ):
        result = gemm(whole[:size])
        assert result.returncode == USAGE
        assert "--weights: " in result.stderr and message in result.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "I64"}, "is not the size of I64"),
        ({"dtype": "I8"}, "has dtype I8, must be U8"),
        ({"dtype": "F4"}, "has dtype F4, must be U8"),
        ({"dtype": "U8"}, "is U8 of rank 2, must be F8_E4M3 of rank 2"),
        ({"dtype": "F16"}, "not the size of F16"),
        ({"shape": [N, K // 16 + 1]}, "is not the size of F8_E4M3"),
        ({"shape": [-1, -384]}, "has -1 in its shape, must be an array of whole numbers, none"),
        ({"shape": [48.5, 8]}, "has 48.5 in its shape, must be"),
        ({"shape": [48.0, 8]}, "has 48.0 in its shape, must be"),
        ({"shape": ["48", 8]}, 'has "48" in its shape, must be'),
        ({"shape": [1 << 64, 8]}, "must be an array of whole numbers"),
        ({"shape": [1, 1, 1, 1, N, K // 16]}, "has rank 6, must be at most 5"),
        ({"shape": [1 << 40, 1 << 40]}, "is not the size of"),
        ({"shape": [0, 1 << 63]}, "is not the size of"),
        ({"shape": "all"}, 'has shape "all", must be an array'),
        ({"dtype": 8}, "has dtype 8, must be a string"),
        ({"shape": [N * K // 16]}, "is F8_E4M3 of rank 1, must be F8_E4M3 of rank 2"),
        ({"shape": [K // 16, N]}, "must have a scale for every 8 bytes"),
        ({"data_offsets": [10]}, "has data_offsets [10], must be [begin, end]"),
        ({"data_offsets": [3072, 3456, 3456]}, "has data_offsets [3072, 3456, 3456], must be"),
        ({"data_offsets": [3072.0, 3456.0]}, "has 3072.0 in its data_offsets, must be an array"),
        ({"data_offsets": [3072.9, 3456.9]}, "has 3072.9 in its data_offsets, must be an array"),
        ({"data_offsets": [384, 0]}, "has data_offsets [384, 0], must be [begin, end]"),
        ({"data_offsets": [1 << 60, (1 << 60) + 384]}, "ends at byte"),
    ],
)
def test_an_inconsistent_tensor_is_refused_by_name(gemm, changes, message):
    result = gemm(safetensors(modelopt(), **changes))
    assert result.returncode == USAGE
    assert f"tensor '{LAYER}.weight_scale' " in result.stderr and message in result.stderr


@pytest.mark.parametrize(
    ("offsets", "tensor", "message"),
    [
        ([3071, 3455], "weight_scale", "begins at byte 3071, must begin at byte 3072: there "),
        ([0, 384], "weight", "begins at byte 0, must begin at byte 384: there "),
        ([1000, 1384], "weight_scale", "begins at byte 1000, must begin at byte 3072"),
        ([3073, 3457], "weight_scale", "begins at byte 3073, must begin at byte 3072"),
        ([3072, 3455], "weight_scale_2", "begins at byte 3456, must begin at byte 3455"),
    ],
)
def test_tensors_that_overlap_or_leave_gaps_are_refused(gemm, offsets, tensor, message):
    result = gemm(safetensors(modelopt(), data_offsets=offsets))
    assert result.returncode == USAGE
    assert f"tensor '{LAYER}.{tensor}' {message}" in result.stderr


def test_bytes_of_no_tensor_are_refused(gemm):
    behind = gemm(safetensors(modelopt()) + bytes(3))
    assert behind.returncode == USAGE
    assert "has 3463 bytes of tensors, must have 3460: there the last tensor ends" in behind.stderr
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}
    before = gemm(file_of(json.dumps({"x": entry}), bytes(8)))
    assert before.returncode == USAGE
    assert "tensor 'x' begins at byte 4, must begin at byte 0: the first" in before.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f"{LAYER}.weight_scale_2", f"{LAYER}.weight", f"'{LAYER}.weight' is in the header twice"),
        ('"shape"', '"dtype": "U8", "shape"', f"tensor '{LAYER}.weight' has 'dtype' twice"),
        ('"format"', '"format": "", "format"', "tensor '__metadata__' has 'format' twice"),
    ],
)
def test_keys_that_are_there_twice_are_refused(gemm, old, new, message):
    whole = safetensors(modelopt())
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    header = whole[8:end].decode()
    assert old in header
    result = gemm(file_of(header.replace(old, new), whole[end:]))
    assert result.returncode == USAGE
    assert message in result.stderr


def test_tensors_of_other_layers_are_checked_too(gemm):
    for dtype, shape in (("F32", [3]), ("I64", [3]), ("BOOL", [7]), ("F32", [])):
        result = gemm(safetensors({"other": (dtype, shape, bytes(8)), **modelopt()}))
        assert result.returncode == USAGE
        assert f"tensor 'other' lies at bytes 0 to 8, which is not the size of {dtype}" in (
            result.stderr
        )
    for metadata, message in (
        (3, "is 3, must be an object"),
        ("pt", 'is "pt", must be an object'),
        (["pt"], "is [...], must be an object"),
        ({"format": 1}, "has format 1, must be a string"),
        ({"format": ["pt"]}, "has format [...], must be a string"),
    ):
        header = json.dumps({"__metadata__": metadata})
        assert f"tensor '__metadata__' {message}" in gemm(file_of(header, b"")).stderr


def test_a_weight_whose_columns_are_no_blocks_is_refused(gemm):
    weight, *_ = modelopt()
    result = gemm(safetensors(modelopt() | {weight: ("U8", [N, 68], bytes(N * 68))}))
    assert result.returncode == USAGE
    assert (
        f"tensor '{weight}' is (48, 68), must have rows of a multiple of 8 bytes" in result.stderr
    )


def test_a_tensor_without_elements_is_read_past_and_is_no_weight(gemm):
    others = {"a": ("I64", [0], b""), **modelopt(), "z": ("F32", [2, 0], b"")}
    result = gemm(safetensors(others))
    assert result.returncode == PASS, result.stderr
    weight, scale, _ = modelopt()
    empty = {weight: ("U8", [0, 64], b""), scale: ("F8_E4M3", [0, 8], b"")}
    result = gemm(safetensors(modelopt() | empty))
    assert result.returncode == USAGE
    assert f"tensor '{weight}' has shape (0, 64), must have no size of 0" in result.stderr


def test_other_wrong_files(gemm, cli, tmp_path):
    assert "is no JSON object" in gemm(struct.pack("<Q", 4) + b"[1,2").stderr
    assert "fewer than its header" in gemm(b"\xff" * 64).stderr
    missing = gemm(safetensors(modelopt()), tensor="model.layers.1.q")
    assert "tensor 'model.layers.1.q.weight' is not in the file" in missing.stderr
    assert "cannot be read" in cli("gemm", "--weights", tmp_path / "none", "--tensor", "x").stderr
    assert "--tensor: is absent" in cli("gemm", "--weights", tmp_path / "none").stderr
    assert "--tensor requires --weights" in cli("gemm", "--tensor", "x").stderr
    for size in ("--n", "--k", "--l"):
        result = gemm(safetensors(modelopt()), size, "16")
        assert result.returncode == USAGE
        assert "--weights" in result.stderr and "excludes" in result.stderr
