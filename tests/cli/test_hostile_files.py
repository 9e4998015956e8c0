"""Files that were made to crash, to exhaust memory or to write to the terminal."""

import json
import os
import struct
import unicodedata

import pytest
from test_safetensors import LAYER, file_of, modelopt, safetensors

PASS, _, USAGE, _ = range(4)
DEEP = 100_000
NESTED = {"array": "[" * DEEP + "]" * DEEP, "object": '{"a":' * DEEP + "0" + "}" * DEEP}
# A colour, a C1 control sequence, DEL, a bell, a new line, a reversal of direction, NUL.
UNPRINTABLE = "\x1b[31m \x9b5m \x7f \x07 \n \u202e \0"
ESCAPED = r"\x1b[31m \x9b5m \x7f \x07 \n \u202e \x00"
SWEEP = ["sweep", "--seqlens", "16,32", "--headdims", "16", "--tokens", "32", "--hidden", "16"]
SWEEP += ["--causal", "0", "--gap", "0", "--samples", "1"]


def assert_refused(result, message):
    assert result.returncode == USAGE, result.stderr
    assert message in result.stderr
    unprintable = [c for c in result.stderr if unicodedata.category(c)[0] == "C" and c != "\n"]
    assert not unprintable, "nothing of a file acts upon the terminal"
    assert len(result.stderr) < 2000


# ---- safetensors


@pytest.fixture
def read(cli):
    """A GEMM with a weight of the file at this path."""

    def run(path, **keywords):
        case = ["--m", "1", "--gap", "0", "--samples", "1", "--weights", path, "--tensor", LAYER]
        return cli("gemm", *case, **keywords)

    return run


@pytest.fixture
def gemm(read, tmp_path):
    """The same of a file of this content."""

    def run(content, **keywords):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return read(path, **keywords)

    return run


def header_of(field, text, tensor="x"):
    fields = {"dtype": '"U8"', "shape": "[0]", "data_offsets": "[0,0]", field: text}
    entry = ",".join(f"{json.dumps(name)}:{value}" for name, value in fields.items())
    return f"{{{json.dumps(tensor)}:{{{entry}}}}}"


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("field", ["dtype", "shape", "data_offsets"])
def test_a_field_that_nests_deeply_is_refused(gemm, kind, field):
    result = gemm(file_of(header_of(field, NESTED[kind]), b""))
    assert_refused(result, "tensor 'x' has ")
    assert field in result.stderr


@pytest.mark.parametrize("kind", NESTED)
def test_what_nests_deeply_elsewhere_is_refused(gemm, kind):
    assert_refused(gemm(file_of(NESTED[kind], b"")), "--weights: ")
    assert_refused(gemm(file_of(f'{{"x":[{NESTED[kind]}]}}', b"")), "tensor 'x' is [...], must")
    metadata = f'{{"__metadata__":{{"x":{NESTED[kind]}}}}}'
    assert_refused(gemm(file_of(metadata, b"")), "tensor '__metadata__' has x ")


@pytest.mark.parametrize("kind", NESTED)
def test_a_field_that_is_not_read_may_nest(gemm, kind):
    whole = safetensors(modelopt())
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    header = whole[8:end].decode().replace('"shape"', f'"more": {NESTED[kind]}, "shape"')
    assert gemm(file_of(header, whole[end:])).returncode == PASS


def test_a_header_takes_a_few_times_its_bytes(gemm, address_space_limit):
    """As a tree it would take 80 times as many."""
    many = ",".join(["[0,0]"] * 5_000_000)
    content = file_of(header_of("more", f"[{many}]"), b"")
    result = gemm(content, before=address_space_limit(kib=500_000))
    assert_refused(result, f"tensor '{LAYER}.weight' is not in the file")


def test_shapes_and_entries_are_bounded(gemm):
    shape = "[" + ",".join("1" * 65) + "]"
    assert_refused(
        gemm(file_of(header_of("shape", shape), b"")), "more than 64 numbers in its shape"
    )
    metadata = json.dumps({"__metadata__": {str(i): "" for i in range(65537)}})
    assert_refused(gemm(file_of(metadata, b"")), "'__metadata__' has more than 65536 fields")


@pytest.mark.parametrize(
    ("header_bytes", "message"),
    [
        (2**31, "has a header of 2147483648 bytes, must have at most 100000000"),
        (2**31 + 1, "has 2147483656 bytes, fewer than its header of 2147483649"),
        (2**64 - 1, "has 2147483656 bytes, fewer than its header of 18446744073709551615"),
    ],
)
def test_a_headers_length_is_bounded_in_a_sparse_file(read, tmp_path, header_bytes, message):
    path = tmp_path / "sparse.safetensors"
    path.write_bytes(struct.pack("<Q", header_bytes))
    os.truncate(path, 8 + 2**31)
    assert_refused(read(path), message)


def test_a_sparse_tensor_that_fits_nowhere_is_unsupported(read, tmp_path):
    path = tmp_path / "sparse.safetensors"
    size = 2**42
    header = header_of("data_offsets", f"[0,{size}]", f"{LAYER}.weight")
    content = file_of(header.replace("[0]", f"[1,{size}]", 1), b"")
    path.write_bytes(content)
    try:
        os.truncate(path, len(content) + size)
    except OSError:
        pytest.skip("the file system has no files of this size")
    result = read(path)
    assert result.returncode == 3, result.stderr
    assert f"error: memory: the case needs {2 * size} bytes of host memory" in result.stderr


@pytest.mark.parametrize("path", ["/proc/self/status", "/proc/self/maps"])
def test_a_file_that_says_it_is_empty(read, path):
    assert_refused(read(path), f"{path} has 0 bytes, fewer than the 8 of a header's length")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/proc/self", "/nowhere"])
def test_what_is_no_file_is_refused(read, path):
    assert_refused(read(path), f"--weights: {path} cannot be read")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (header_of("dtype", json.dumps(UNPRINTABLE)), "'model.layers.0.q.weight' is not in"),
        (header_of("shape", json.dumps(UNPRINTABLE)), f'has shape "{ESCAPED}", must be'),
        (header_of("shape", "3", UNPRINTABLE), f"tensor '{ESCAPED}' has shape 3, must be"),
        (header_of("data_offsets", "[9,9]", UNPRINTABLE), f"tensor '{ESCAPED}' ends at byte 9"),
        (header_of("shape", "[7]", UNPRINTABLE), f"tensor '{ESCAPED}' lies at bytes 0 to 0"),
        (
            json.dumps({"__metadata__": {UNPRINTABLE: 1}}),
            f"tensor '__metadata__' has {ESCAPED} 1, must be a string",
        ),
        (
            header_of("shape", "3", "x" * 100_000),
            f"tensor '{'x' * 256}... (100000 bytes)' has shape 3",
        ),
    ],
)
def test_what_a_header_says_is_printable(gemm, header, message):
    assert_refused(gemm(file_of(header, b"")), message)


def test_the_dtype_of_a_weight_is_printable(gemm):
    content = safetensors(modelopt(), dtype=UNPRINTABLE)
    assert_refused(gemm(content), f"has dtype {ESCAPED}, must be U8")


def test_bytes_that_are_no_utf8_are_no_header(gemm):
    for text in (b'{"\xff":1}', b'{"\xc3":1}', b'{"\x1b":1}'):
        content = struct.pack("<Q", len(text)) + text
        assert_refused(gemm(content), "has a header that is no JSON object")


def test_the_name_of_a_file_is_printable(read, tmp_path):
    for name, escaped in ((b"\x1b[31m", r"\x1b[31m"), (b"\xff\x9b", r"\xff\x9b"), (b"\n", r"\n")):
        path = os.path.join(os.fsencode(tmp_path), name)
        with open(path, "wb") as file:
            file.write(b"[1,2")
        assert_refused(read(os.fsdecode(path)), f"{escaped} has 4 bytes")


# ---- results files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def resume(cli, path):
    """A sweep that resumes a file of this content."""

    def run(content, **keywords):
        path.write_bytes(content)
        return cli(*SWEEP, "--json", path, "--resume", **keywords)

    return run


@pytest.fixture(scope="session")
def line():
    """A line that no sweep of these tests skips."""
    fields = ("run", "operation", "impl", "impl_version", "gpu")
    return dict.fromkeys(fields, "x") | {"case": {"dtype": "bf16"}, "supported": True}


def as_bytes(*lines):
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.mark.parametrize("field", ["run", "impl", "impl_version", "gpu"])
@pytest.mark.parametrize(
    ("value", "type_name"),
    [(5, "number"), (None, "null"), ([], "array"), ({"a": {}}, "object"), (True, "boolean")],
)
def test_a_field_of_another_type_is_refused_by_name(resume, path, line, field, value, type_name):
    content = as_bytes(line, line | {field: value})
    result = resume(content)
    message = f"{path} line 2 has {field} of type {type_name}, must be a string"
    assert_refused(result, f"error: --resume: {message}")
    assert path.read_bytes() == content


@pytest.mark.parametrize("field", ["run", "case", "impl", "impl_version", "gpu"])
def test_a_field_that_is_absent_is_refused_by_name(resume, path, line, field):
    content = as_bytes({name: value for name, value in line.items() if name != field})
    assert_refused(resume(content), f"{path} line 1 has no {field}")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "line 1 is no JSON from byte 1 on"),
        (b"hello\n", "line 1 is no JSON from byte 1 on"),
        (b"{hello", "line 1 is no JSON from byte 2 on"),
        (b"\n[1, 2]\n", "line 2 is of type array, must be an object"),
        (b"3", "line 1 is of type number, must be an object"),
        (b"\x7fELF\0\0\n", "line 1 is no JSON from byte 1 on"),
        (b'{"case": 5}\n', "line 1 has case of type number, must be an object"),
        (b'{"case": 1e999}\n', "line 1 has a number that is too large"),
        (b'{"\xff": 5}\n', "line 1 is no JSON from byte 3 on"),
        (b'{"run": "x', None),
    ],
)
def test_only_lines_of_results_are_resumed(resume, path, content, message):
    result = resume(content)
    if message is None:
        assert result.returncode == PASS, "it was cut off"
    else:
        assert_refused(result, f"error: --resume: {path} {message}")
        assert path.read_bytes() == content


def test_a_line_is_cut_off_at_the_end_only(resume, path, line):
    first, second = as_bytes(line), as_bytes(line | {"gpu": "ü"})
    whole = len(second) - 1
    for size in (*range(1, whole, 9), whole - 1, whole):
        content = first + second[:size]
        assert_resumes(resume(content), path, first + (second if size == whole else b""))
        if size < whole:
            content = first + second[:size] + b"\n" + first
            assert_refused(resume(content), f"{path} line 2 is no JSON from byte")
            assert path.read_bytes() == content


def assert_resumes(result, path, kept):
    assert result.returncode == PASS, result.stderr
    content = path.read_bytes()
    assert content.startswith(kept)
    assert content[len(kept) :].count(b"\n") == 2, "the sweep has two cases"


def test_lines_are_kept_byte_for_byte(resume, path, line):
    text = json.dumps(line).encode()
    spaced = b" " + text.replace(b": ", b" :  ") + b"\t"
    for content in (
        text + b"\r\n" + text + b"\r\n",
        b"\xef\xbb\xbf" + text + b"\n",
        b"\n \n" + spaced + b"\n\n" + text + b"\n",
    ):
        assert_resumes(resume(content), path, content)
    assert_resumes(resume(text), path, text + b"\n")
    assert_resumes(resume(b""), path, b"")


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("field", ["case", "setup"])
def test_a_line_that_nests_deeply_is_refused(resume, path, line, kind, field):
    text = json.dumps(line | {field: "HERE"}).replace('"HERE"', NESTED[kind])
    content = text.encode() + b"\n"
    assert_refused(resume(content), f"{path} line 1 nests deeper than 16")
    assert path.read_bytes() == content


def test_a_lines_length_is_bounded(resume, path, line):
    long = as_bytes(line | {"setup": {"x": "x" * 2**20}})
    content = as_bytes(line) + long
    assert_refused(resume(content), f"{path} line 2 has {len(long) - 1} bytes, must have at most")
    assert path.read_bytes() == content


def test_a_files_size_is_bounded(cli, path, address_space_limit):
    path.write_bytes(b"")
    os.truncate(path, 2**40)
    before = address_space_limit(kib=1_000_000)
    result = cli(*SWEEP, "--json", path, "--resume", before=before)
    assert_refused(result, f"--resume: {path} has more than {2**26} bytes")
    assert path.stat().st_size == 2**40


def test_many_keys_take_little_time(resume, line):
    content = as_bytes(line | {"case": {str(i): 0 for i in range(80_000)}})
    assert resume(content, before="ulimit -t 3").returncode == PASS


def test_what_is_no_file_is_not_resumed(cli, tmp_path):
    for path in ("/dev/null", tmp_path):
        result = cli(*SWEEP, "--json", path, "--resume")
        assert_refused(result, f"--resume: {path} is no regular file, must be one")


def test_the_name_of_a_results_file_is_printable(cli, tmp_path):
    path = tmp_path / UNPRINTABLE.replace("\0", "")
    path.write_bytes(b"hello")
    escaped = ESCAPED.removesuffix(r"\x00")
    assert_refused(cli(*SWEEP, "--json", path, "--resume"), f"{escaped} line 1 is no JSON")
    assert_refused(cli(*SWEEP, "--json", path / "x"), f"cannot write '{tmp_path}/{escaped}/x'")
