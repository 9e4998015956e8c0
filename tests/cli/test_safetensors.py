"""tilewright gemm --weights: checkpoints as they should be, cut off, and inconsistent."""

import json
import random
import struct

import pytest

PASS, _, USAGE, _ = range(4)
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


def safetensors(tensors, **changes):
    """A file's bytes; `changes` replace fields of the scale's entry in the header."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    header[f"{LAYER}.weight_scale"] |= changes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def gemm(cli, tmp_path):
    def run(content, *arguments, tensor=LAYER):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        case = ["--m", "7", "--gap", "0", "--samples", "5", "--weights", path]
        return cli("gemm", *case, "--tensor", tensor, *arguments)

    return run


@pytest.mark.parametrize("tensors", [modelopt(), compressed_tensors()])
def test_checkpoints_are_read_in_their_own_convention(gemm, tmp_path, tensors):
    path = tmp_path / "gemm.jsonl"
    result = gemm(safetensors(tensors), "--check", "--json", path)
    assert result.returncode == PASS, result.stderr
    assert "ok: relative" in result.stdout
    case = json.loads(path.read_text())["case"]
    assert (case["n"], case["k"]) == (N, K)


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
        ({"dtype": "I64"}, "has dtype I64, must be U8"),
        ({"dtype": "F16"}, "not the size of F16"),
        ({"shape": [N, K // 16 + 1]}, "is not the size of F8_E4M3"),
        ({"shape": [-1, -384]}, "is not the size of"),
        ({"shape": [1 << 40, 1 << 40]}, "is not the size of"),
        ({"shape": "all"}, "has no dtype, shape and data_offsets"),
        ({"shape": [N * K // 16]}, "is e4m3 of rank 1, must be e4m3 of rank 2"),
        ({"shape": [K // 16, N]}, "must have a scale for every 8 bytes"),
        ({"data_offsets": [10]}, "has no dtype, shape and data_offsets"),
        ({"data_offsets": [384, 0]}, "is not the size of"),
        ({"data_offsets": [1 << 60, (1 << 60) + 384]}, "ends at byte"),
    ],
)
def test_an_inconsistent_tensor_is_refused_by_name(gemm, changes, message):
    result = gemm(safetensors(modelopt(), **changes))
    assert result.returncode == USAGE
    assert f"tensor '{LAYER}.weight_scale' " in result.stderr and message in result.stderr


def test_other_wrong_files(gemm, cli, tmp_path):
    assert "is no JSON object" in gemm(struct.pack("<Q", 4) + b"[1,2").stderr
    assert "fewer than its header" in gemm(b"\xff" * 64).stderr
    missing = gemm(safetensors(modelopt()), tensor="model.layers.1.q")
    assert "tensor 'model.layers.1.q.weight' is not in the file" in missing.stderr
    assert "cannot be read" in cli("gemm", "--weights", tmp_path / "none", "--tensor", "x").stderr
    assert "--tensor: is absent" in cli("gemm", "--weights", tmp_path / "none").stderr
