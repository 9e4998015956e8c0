"""The race of attention on FP8 on the CPU: its cases, its inputs, its oracle; and how the peers are
called, with stand-ins for their libraries, which compute on the CPU."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")

import tilewright
from test_bench import needs_gpu
from test_peers import FA3_WHEELS, Graph, Tensor, cudnn_library, fa3_libraries, load
from test_results import VALIDATOR
from tilewright._kernels import find_kernel
from tilewright.bench import __main__ as bench
from tilewright.bench import oracle
from tilewright.bench.fp8 import Fp8Case, cases
from tilewright.bench.fp8_inputs import PER_TENSOR, Form
from tilewright.bench.peers.fp8.tilewright import In16Bits
from tilewright.bench.tensors import normal_with_outliers

CASE = Fp8Case("e4m3", 2, 150, 150, 4, 2, 64, 64, causal=True, device="cpu")
OWN = {
    "causal": {},
    "full": {"causal": False},
    "unequal lengths": {"q_len": 40},
    "a sample of rows": {"checked_rows": 30},
    "outliers": {"outliers": True},
}
FORMS = {
    f"{'rotated, ' * rotated}a descale a {descale}": {"rotated": rotated, "descale": descale}
    for rotated in (False, True)
    for descale in ("tensor", "block")
}
FEATURES = {
    "a window": {"window": 20},
    "a soft cap": {"softcap": 30.0},
    "sinks": {"sinks": True},
    "packed": {"batch": 3, "lengths": (100, 20, 30)},
    "packed, in blocks": {"batch": 2, "lengths": (140, 10), "rotated": True, "descale": "block"},
    "packed, in one": {"batch": 2, "lengths": (140, 10), "rotated": True, "descale": "tensor"},
}


def each(options):
    return pytest.mark.parametrize("options", options.values(), ids=options)


def cpu_kernel():
    (peer,) = bench.load_kernels("fp8", "cpu", "cpu")
    return peer


def check(peer, case):
    inputs = case.make_inputs(0)
    errors = case.errors(inputs, peer.prepare(case, inputs)(), peer.lse(case, inputs))
    assert 0 < errors.rel_fro < case.error_limit(inputs, peer.is_ours)
    return errors


def lines_of(tmp_path, *arguments, status=0):
    path = tmp_path / "race.jsonl"
    small = ["fp8", "--device=cpu", "--gap=0", "--samples=2", "--check", "--peers=none"]
    small += ["--headdim=64", "--batch=1", f"--json={path}"]
    assert bench.main([*small, *arguments]) == status
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    return lines


def test_lines_of_a_small_sweep(tmp_path):
    lines = lines_of(tmp_path, "--heads=2", "--seqlen=128,200")
    assert [line["impl"] for line in lines] == ["tilewright/cpu"] * 4
    assert {line["operation"] for line in lines} == {"attention_fp8"}
    assert all(line["setup"] == {"rotated": True, "descale": "block"} for line in lines)
    one = lines[0]
    assert one["case"] == {
        "dtype": "e4m3", "batch": 1, "q_len": 128, "kv_len": 128, "heads": 2, "kv_heads": 2,
        "head_dim": 64, "v_dim": 64, "causal": False,
    }  # fmt: skip
    assert all(0.01 < line["rel_fro_error"] < 0.08 and line["lse_error"] < 1e-4 for line in lines)
    assert one["gbps"] == pytest.approx(128 * 2 * 64 * 5 / one["median_us"] / 1e3, 1e-4)


def test_lines_of_every_form(tmp_path):
    forms = ["--descale=tensor,block", "--rotated=both", "--values=both", "--checked-rows=16"]
    lines = lines_of(tmp_path, "--heads=1", "--seqlen=128", "--causal=off", *forms)
    found = [
        (line["case"].get("outliers", False), line["case"]["descale"], line["case"]["rotated"])
        for line in lines
    ]
    assert len(set(found)) == len(found) == 8
    assert all("setup" not in line and line["case"]["checked_rows"] == 16 for line in lines)


@each(OWN | FORMS | FEATURES)
def test_the_reproducing_arguments_give_the_case(options):
    case = dataclasses.replace(CASE, **options)
    args = bench.parse_arguments(case.arguments().split())
    assert list(cases(args, "cpu")) == [case]


def test_a_sample_of_packed_rows_is_refused():
    args = bench.parse_arguments(["fp8", "--lengths=8,9", "--checked-rows=4"])
    with pytest.raises(SystemExit, match="--checked-rows"):
        next(cases(args, "cpu"))


@each(OWN | FORMS | FEATURES)
def test_the_library_is_near_the_oracle(options):
    case = dataclasses.replace(CASE, **options)
    peer = cpu_kernel()
    assert peer.supports(case) is None and case.label
    assert check(peer, case).lse < case.lse_limit


def test_kernels_of_the_gpu():
    """In the order of their pages, so that a rung's table begins with the one before."""
    ours = bench.load_kernels("fp8", "all", "cuda:0")
    names = [peer.name.removeprefix("tilewright/") for peer in ours]
    assert names[:3] == ["flash", "k6", "k7"] and {"k8", "flash_fp8"} < set(names)
    case = dataclasses.replace(CASE, head_dim=128, v_dim=128, lengths=(90, 60))
    for peer in ours:
        takes = peer.kernel.takes("packed")
        assert (peer.supports(case) == "does not take packed") == (not takes)
        assert peer.problem_of(case)


def test_a_kernel_on_the_rows_in_16_bits_is_a_measure():
    peer = In16Bits(find_kernel("cpu"))
    case = dataclasses.replace(CASE, outliers=True, checked_rows=50)
    assert peer.supports(case) is None
    assert check(peer, case).rel_fro < 3e-3
    form = {"rotated": False, "descale": "tensor"}
    assert peer.supports(dataclasses.replace(case, **form)) == "has no descales"


def test_rotation_spreads_outliers():
    case = dataclasses.replace(CASE, outliers=True, batch=1, q_len=512, kv_len=512, causal=False)
    peer = cpu_kernel()
    errors = {
        form: check(peer, dataclasses.replace(case, **options)).rel_fro
        for form, options in FORMS.items()
    }
    assert errors["rotated, a descale a block"] < 0.8 * errors["a descale a tensor"]


def test_outliers_are_one_in_a_thousand_with_a_variance_of_100():
    plain, *others = normal_with_outliers([(1000, 1000), (10,), (10,)], "fp32", "cpu", 0)
    large = plain[plain.abs() > 6]
    assert 500 < len(large) < 600  # of 1000, those of more than 0.6 sigma
    assert plain.var() == pytest.approx(1.1, abs=0.02)
    assert not torch.equal(*others)


def test_a_sample_is_of_the_rows_that_it_names():
    whole = dataclasses.replace(CASE, window=30).make_inputs(0)
    rows = torch.tensor([0, 7, 99, 149])
    sample = oracle.expect(whole.case, whole, rows)
    for exact, part in zip(whole.expected.outs, sample.outs, strict=True):
        assert torch.equal(exact[rows], part)
    for exact, part in zip(whole.expected.lses, sample.lses, strict=True):
        assert torch.equal(exact[:, rows], part)


def test_errors_of_a_sample_are_of_no_other_rows():
    case = dataclasses.replace(CASE, checked_rows=20)
    inputs = case.make_inputs(0)
    out = tilewright.attention(inputs.q, inputs.k, inputs.v, causal=True)
    right = case.errors(inputs, out)
    others = torch.ones(case.q_len, dtype=torch.bool)
    others[inputs.expected.rows] = False
    out[:, others] = 9
    assert case.errors(inputs, out) == right
    out[:, ~others] += 1
    assert case.errors(inputs, out).rel_fro > 0.5


@pytest.mark.parametrize("form", [PER_TENSOR, Form(True, True), Form(True, False, True)])
def test_what_the_bytes_stand_for_is_near_the_rows(form):
    inputs = CASE.make_inputs(0)
    made = inputs.quantized(form)
    assert made is inputs.quantized(form)
    assert ("v_transposed" in made) == form.transposed
    for name in "qk":
        descale = made[f"{name}_descale"]
        assert descale.shape == ((2, 4 if name == "q" else 2, 2) if form.blocks else (1,))
        assert made[name].float().abs().max() == 448
    if form == PER_TENSOR:
        values, rows = made["q"].float() * made["q_descale"], inputs.q.float()
        assert 0.02 < (values - rows).norm() / rows.norm() < 0.03


# ---- FlashAttention-3


def e4m3_attention(q, k, v, causal, q_descale, k_descale, v_descale, **options):
    """By heads of keys and values, as FlashAttention-3 has descales."""
    for tensor, descale in ((q, q_descale), (k, k_descale), (v, v_descale)):
        assert tensor.dtype == torch.float8_e4m3fn
        assert descale.shape == (len(k), k.shape[2]) and descale.dtype == torch.float32
    descales = (each.contiguous() for each in (q_descale, k_descale, v_descale))
    names = ("q_descale", "k_descale", "v_descale")
    return tilewright.attention_fp8(
        q, k, v, causal=causal, **dict(zip(names, descales, strict=True)), **options
    )


@pytest.fixture
def fa3(monkeypatch):
    def flash_attn_func(q, k, v, causal, window_size, softcap, num_splits=1,
                        return_attn_probs=False, **descales):  # fmt: skip
        assert num_splits == (0 if q.shape[1] < k.shape[1] else 1)
        options = {"window_size": window_size, "softcap": softcap, "return_lse": return_attn_probs}
        return e4m3_attention(q, k, v, causal, **descales, **options)

    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config, interface = fa3_libraries(*FA3_WHEELS["fa3"])
    interface.flash_attn_func = flash_attn_func
    for module in load(monkeypatch, "fp8.fa3", config, interface):
        assert module.peers("cpu") == []
        (peer,) = module.peers("cuda:0")
        assert peer.name == "fa3"
        yield peer


@each(OWN | FORMS | {"a soft cap": {"softcap": 30.0}})
def test_fa3(fa3, options):
    case = dataclasses.replace(CASE, **options)
    if case.descale == "block":
        assert fa3.supports(case) == "does not take descales of blocks"
        return
    assert fa3.supports(case) is None
    assert check(fa3, case).lse < case.lse_limit
    assert fa3.setup(case) == (None if case.descale else {"rotated": False, "descale": "tensor"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": 5}, "window is not in this build"),
        ({"sinks": True}, "sinks is not in this build"),
        ({"dtype": "bf16"}, "dtype bf16 is not in this build"),
    ],
)
def test_fa3_supports(fa3, options, reason):
    assert fa3.supports(dataclasses.replace(CASE, **options)) == reason


# ---- cuDNN


class Fp8Graph(Graph):
    """cuDNN's graph on FP8, whose results are E4M3."""

    def __init__(self, **types):
        assert types["io_data_type"] == "FP8_E4M3"

    def sdpa_fp8(self, q, k, v, generate_stats, attn_scale, name, diagonal_alignment=0,
                 left_bound=None, right_bound=None, **numbers):  # fmt: skip
        names = ("descale_q", "descale_k", "descale_v", "scale_s", "descale_s", "scale_o")
        self.numbers = numbers
        assert set(numbers) == set(names)
        assert all(number.dim == [1, 1, 1, 1] for number in self.numbers.values())
        assert not generate_stats and attn_scale == q.dim[3] ** -0.5
        self.inputs, self.options = (q, k, v), {"diagonal_alignment": diagonal_alignment}
        for side, bound in (("left", left_bound), ("right", right_bound)):
            self.options[f"diagonal_band_{side}_bound"] = bound
        self.out, self.amax = Tensor(), [Tensor(), Tensor()]
        return self.out, None, *self.amax

    def execute(self, buffers, workspace, handle):
        assert all(buffers[tensor.uid].shape == (1,) for tensor in self.amax)
        number = {name: buffers[tensor.uid] for name, tensor in self.numbers.items()}
        assert number["scale_s"] * number["descale_s"] == 1
        descales = {f"{name}_descale": number[f"descale_{name}"] for name in "qkv"}
        for sequence in range(self.inputs[0].dim[0]):
            q, k, v = (
                tensor.rows(buffers, sequence, tensor.dim[2])[None].contiguous()
                for tensor in self.inputs
            )
            result = tilewright.attention_fp8(q, k, v, window_size=self.window(), **descales)[0]
            scaled = (result.float() * number["scale_o"]).clamp(-448, 448)
            self.out.rows(buffers, sequence, q.shape[1]).copy_(scaled)


@pytest.fixture
def cudnn(monkeypatch):
    stream = type("Stream", (), {"cuda_stream": 0})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    for module in load(monkeypatch, "fp8.cudnn", cudnn_library(Fp8Graph)):
        assert module.peers("cpu") == []
        yield module.peers("cuda:0")[0]


@each(OWN | FORMS)
def test_cudnn(cudnn, options):
    case = dataclasses.replace(CASE, **options)
    if case.descale == "block":
        assert cudnn.supports(case) == "does not take descales of blocks"
        return
    assert cudnn.supports(case) is None
    check(cudnn, case)
    own = {} if case.descale else {"rotated": False, "descale": "tensor"}
    assert cudnn.setup(case) == own | {"out_dtype": "e4m3"}


def test_cudnn_has_its_results_in_e4m3s_range(cudnn):
    """However small they are."""
    inputs = CASE.make_inputs(0)
    inputs.v *= 1e-3
    result = cudnn.prepare(CASE, inputs)()
    assert 448 / 8 < result.codes.float().abs().max() < 448
    assert CASE.errors(inputs, result).rel_fro < 0.1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"lengths": (100, 50), "batch": 2}, "without packed sequences"),
        ({"sinks": True}, "without packed sequences and sinks"),
        ({"softcap": 30.0}, "does not take softcap"),
    ],
)
def test_cudnn_supports(cudnn, options, reason):
    assert reason in cudnn.supports(dataclasses.replace(CASE, **options))


# ---- On the GPU


@needs_gpu
@each(OWN | FORMS)
def test_race_on_the_gpu(tmp_path, options):
    case = dataclasses.replace(CASE, head_dim=128, v_dim=128, device="cuda:0", **options)
    path = tmp_path / "race.jsonl"
    arguments = [*case.arguments().split(), "--peers=none", f"--json={path}", "--check"]
    assert bench.main([*arguments, "--samples=3", "--gap=0"]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    ran = {line["impl"]: line["rel_fro_error"] for line in lines if line["supported"]}
    assert all(0 < error < case.error_limit(None, is_ours=True) for error in ran.values())
    assert {"tilewright/k8", "tilewright/flash_fp8"} <= set(ran)
    assert ("tilewright/k7" in ran) == (case.descale != "block")
    assert ("tilewright/k6" in ran) == (case.descale is None)
