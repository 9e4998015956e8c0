"""The operators of KV caches: traced, compiled, exported, and what they write.

On the CPU, and on a GPU where there is one.
"""

import shutil

import pytest

import tilewright
from tilewright import InvalidArgumentError, UnsupportedError
from tilewright.flash_attn import flash_attn_with_kvcache

torch = pytest.importorskip("torch")

from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import tilewright.torch
from torch_modes import SeenByDispatch

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BATCH, HEADS, KV_HEADS, DIM, PAGE, PAGES = 3, 4, 2, 64, 16, 12
CACHED = (37, 0, 20)
OPERATORS = torch.ops.tilewright


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_cuda)])
def call(request):
    """A new token of each of three sequences, in pages in random order."""
    dtype = torch.bfloat16 if request.param == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)

    def make(*shape):
        return torch.randn(shape, generator=generator).to(request.param, dtype)

    k_cache, v_cache = make(2, PAGES, PAGE, KV_HEADS, DIM)
    table = torch.randperm(PAGES, generator=generator).int().reshape(BATCH, -1)
    return {
        "q": make(BATCH, 1, HEADS, DIM),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "cache_seqlens": torch.tensor(CACHED, dtype=torch.int32, device=request.param),
        "k": make(BATCH, 1, KV_HEADS, DIM),
        "v": make(BATCH, 1, KV_HEADS, DIM),
        "block_table": table.to(request.param),
    }


def read(q, k_cache, v_cache, cache_seqlens, k, v, block_table):
    """A piece of a model over keys that are there."""
    lengths = (cache_seqlens - 1).clamp(min=0)
    out, lse = tilewright.attention_with_kvcache(
        q * 2, k_cache, v_cache, lengths, block_table=block_table, return_lse=True
    )
    return out + 1, lse.exp()


def append(q, k_cache, v_cache, cache_seqlens, k, v, block_table):
    """A piece of a model that appends the new tokens' keys."""
    return 2 * tilewright.attention_with_kvcache(
        q, k_cache, v_cache, cache_seqlens, k=k + 1, v=v, block_table=block_table, causal=True
    )


def append_as_flash_attention(q, k_cache, v_cache, cache_seqlens, k, v, block_table):
    return flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=9, causal=True)


def rotate_as_flash_attention(q, k_cache, v_cache, cache_seqlens, k, v, block_table):
    angles = torch.ones(64, DIM // 2, device=q.device)
    return flash_attn_with_kvcache(
        *(q, k_cache, v_cache, k, v),
        rotary_cos=angles.cos(),
        rotary_sin=angles.sin(),
        cache_seqlens=cache_seqlens,
        page_table=block_table,
    )


def write(q, k_cache, v_cache, cache_seqlens, k, v, block_table):
    """Keys rotated and stored, then attention over them."""
    angles = torch.arange(64, device=q.device)[:, None] * torch.ones(DIM // 2, device=q.device)
    rotated = tilewright.append_kv(
        *(k, v, k_cache, v_cache),
        cache_seqlens=cache_seqlens,
        block_table=block_table,
        rotary_cos=angles.cos(),
        rotary_sin=angles.sin(),
        q=q,
    )
    return tilewright.attention_with_kvcache(
        rotated, k_cache, v_cache, cache_seqlens + 1, block_table=block_table
    )


def merge(q, k_cache, v_cache, cache_seqlens, k, v, block_table):
    """The keys before and after a position, apart."""
    half = cache_seqlens // 2
    options = {"block_table": block_table, "return_lse": True}
    first = tilewright.attention_with_kvcache(q, k_cache, v_cache, half, **options)
    rest = tilewright.attention_with_kvcache(
        q, k_cache, v_cache, cache_seqlens, leftpad_k=half, **options
    )
    outs, lses = (torch.stack(parts) for parts in zip(first, rest, strict=True))
    lses = lses.permute(0, 2, 1, 3).flatten(2)
    return tilewright.merge_states(outs.float().flatten(1, 2), lses, dtype=torch.bfloat16)


STEPS = {
    "read": (read, OPERATORS.attention_with_kvcache),
    "append": (append, OPERATORS.attention_with_kvcache_append),
    "append, FlashAttention's": (
        append_as_flash_attention,
        OPERATORS.attention_with_kvcache_append,
    ),
    "rotate, FlashAttention's": (rotate_as_flash_attention, OPERATORS.append_kv),
    "write": (write, OPERATORS.append_kv),
    "merge": (merge, OPERATORS.merge_states),
}


def copy_of(call):
    return {name: tensor.clone() for name, tensor in call.items()}


def expect_same(function, step, call):
    """Of results and of what has become of the caches."""
    theirs, ours = copy_of(call), copy_of(call)
    torch.testing.assert_close(function(**theirs), step(**ours), rtol=0, atol=0)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", STEPS)
def test_compiles_to_one_graph(call, name, backend):
    torch.compiler.reset()
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("inductor needs a C++ compiler")
    step, _ = STEPS[name]
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    theirs, ours = copy_of(call), copy_of(call)
    torch.testing.assert_close(compiled(**theirs), step(**ours))
    torch.testing.assert_close(theirs, ours)


@pytest.mark.parametrize("name", STEPS)
def test_compiles_once_for_all_capacities(call, name):
    torch.compiler.reset()
    step, _ = STEPS[name]
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for pages in (PAGES, PAGES + 5):
        more = copy_of(call)
        for cache in ("k_cache", "v_cache"):
            more[cache] = torch.cat((call[cache], call[cache][: pages - PAGES]))
        with torch._dynamo.config.patch(error_on_recompile=pages != PAGES):
            expect_same(compiled, step, more)


class Model(torch.nn.Module):
    def __init__(self, step, call):
        super().__init__()
        self.step = step
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, call[name].clone())

    def forward(self, q, cache_seqlens, k, v, block_table):
        return self.step(q, self.k_cache, self.v_cache, cache_seqlens, k, v, block_table)


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("name", ["append", "write"])
def test_inductor_copies_no_cache(call, name):
    torch.compiler.reset()
    model = Model(STEPS[name][0], call)
    inputs = {name: x for name, x in call.items() if not name.endswith("_cache")}
    _, (code, *_) = run_and_get_code(torch.compile(model, fullgraph=True), **inputs)
    assert "tilewright" in code and "clone" not in code


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_exports_whole(call, name, strict):
    step, operator = STEPS[name]
    inputs = {name: x for name, x in call.items() if not name.endswith("_cache")}
    program = torch.export.export(Model(step, call), (), inputs, strict=strict)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert operator.default in targets
    exported, model = program.module(), Model(step, call)
    for _ in range(2):
        torch.testing.assert_close(exported(**inputs), model(**inputs), rtol=0, atol=0)
    state = model.state_dict()
    torch.testing.assert_close(dict(exported.state_dict()), dict(state), rtol=0, atol=0)


@pytest.mark.parametrize("name", STEPS)
def test_a_graph_of_make_fx_has_the_operator(call, name):
    step, operator = STEPS[name]
    arguments = tuple(copy_of(call).values())
    traced = make_fx(step)(*arguments)
    assert operator.default in [node.target for node in traced.graph.nodes]
    expect_same(lambda **inputs: traced(*inputs.values()), step, call)


@pytest.mark.parametrize("name", STEPS)
def test_dispatch_modes_and_profilers_see_the_operator(call, name):
    step, operator = STEPS[name]
    with SeenByDispatch() as seen:
        step(**copy_of(call))
    assert operator.default in seen.operators
    with torch.profiler.profile() as profile:
        step(**copy_of(call))
    assert operator._qualified_op_name in {event.key for event in profile.key_averages()}


def test_flops_are_those_of_both_products(call):
    def flops(**options):
        with FlopCounterMode(display=False) as counter:
            tilewright.attention_with_kvcache(**(copy_of(call) | options))
        return counter.get_total_flops()

    cost = 2 * HEADS * (DIM + DIM)
    assert flops(k=None, v=None) == cost * sum(CACHED)
    assert flops() == cost * sum(cached + 1 for cached in CACHED)
    new = [0, 1, 2, 3]
    packed = {name: call[name].flatten(0, 1) for name in ("q", "k", "v")}
    packed["cu_seqlens_q"] = torch.tensor(new, dtype=torch.int32, device=call["q"].device)
    assert flops(**packed) == flops()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_lse": True, "causal": True},
        {"normalize": False, "softcap": 2.0, "window_size_left": 9},
    ],
)
def test_operators_of_attention_keep_pytorchs_rules(call, options):
    torch.library.opcheck(tilewright.torch.attention_with_kvcache_append, (), call | options)
    cached = {name: x for name, x in call.items() if name not in ("k", "v")}
    torch.library.opcheck(tilewright.torch.attention_with_kvcache, (), cached | options)


@pytest.mark.parametrize("with_q", [False, True])
@pytest.mark.parametrize("is_quantised", [False, True])
def test_append_kvs_operator_keeps_pytorchs_rules(call, with_q, is_quantised):
    device = call["q"].device
    arguments = {name: call[name] for name in ("k", "v", "k_cache", "v_cache", "block_table")}
    arguments["cache_seqlens"] = call["cache_seqlens"]
    arguments |= dict.fromkeys(("computed_k_descale", "computed_v_descale"))
    if with_q:
        tables = dict.fromkeys(("rotary_cos", "rotary_sin"), torch.ones(64, 8, device=device))
        arguments |= {"q": call["q"]} | tables
    if is_quantised:
        for name in ("k", "v"):
            shape = (PAGES, PAGE, KV_HEADS)
            arguments[f"{name}_cache"] = torch.zeros(*shape, DIM, dtype=torch.uint8, device=device)
            arguments[f"computed_{name}_descale"] = torch.ones(shape, device=device)
    torch.library.opcheck(tilewright.torch.append_kv, (), arguments)


@pytest.mark.parametrize("options", [{}, {"return_lse": True}, {"dtype": "float16"}])
def test_merge_states_operator_keeps_pytorchs_rules(call, options):
    o = torch.randn(2, 5, HEADS, DIM, device=call["q"].device)
    lse = torch.randn(2, HEADS, 5, device=o.device)
    torch.library.opcheck(tilewright.torch.merge_states, (o, lse), options)
    if not options:
        torch.library.opcheck(
            tilewright.torch.merge_states, (o, None, lse, lse.exp()), {"normalize": False}
        )


def test_fake_tensors(call):
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(x) for name, x in call.items()}
        out, row_max, _ = tilewright.attention_with_kvcache(**fakes, normalize=False)
        merged = tilewright.merge_states(out, row_max[..., 0])
    assert out.shape == call["q"].shape and out.dtype == torch.float32
    assert row_max.shape == (BATCH, HEADS, 1)
    assert merged.shape == (1, HEADS, DIM)


def e4m3_call(call):
    """Of queries and caches in E4M3."""
    codes = {name: call[name].to(torch.float8_e4m3fn) for name in ("q", "k_cache", "v_cache")}
    places = {name: call[name] for name in ("cache_seqlens", "block_table")}
    descale = torch.rand(BATCH, KV_HEADS, device=call["q"].device) + 0.5
    return codes | places | {"q_descale": descale}


@pytest.mark.parametrize("normalize", [True, False])
def test_e4m3_queries(call, normalize):
    given = e4m3_call(call) | {"normalize": normalize, "return_lse": normalize}
    results = tilewright.attention_with_kvcache(**given)
    assert results[0].dtype == (torch.bfloat16 if normalize else torch.float32)
    operator = tilewright.torch.attention_with_kvcache(**given)
    torch.testing.assert_close(operator[: len(results)], results, rtol=0, atol=0)
    for name in ("q", "k_cache", "v_cache"):  # opcheck() does arithmetic that float8 has not
        given[name] = given[name].view(torch.uint8)
    torch.library.opcheck(tilewright.torch.attention_with_kvcache, (), given)


def test_the_operator_that_reads_refuses_new_rows(call):
    before = copy_of(call)
    for name in ("k", "v"):
        given = {other: x for other, x in call.items() if other not in ("k", "v")}
        with pytest.raises(UnsupportedError, match=f"{name}: is given, must be None"):
            OPERATORS.attention_with_kvcache(**given, **{name: call[name]})
    torch.testing.assert_close(call, before, rtol=0, atol=0)


CALLS = {
    "attention_with_kvcache": (
        *("q", "out"),
        lambda call, **changed: tilewright.attention_with_kvcache(**(call | changed)),
    ),
    "append_kv": (
        *("k", "q_out"),
        lambda call, **changed: tilewright.append_kv(
            **({name: x for name, x in call.items() if name != "q"} | changed)
        ),
    ),
    "merge_states": (
        *("o", "out"),
        lambda call, **changed: tilewright.merge_states(
            changed.pop("o", call["q"][None, 0]),
            torch.zeros(1, HEADS, 1, device=call["q"].device),
            **changed,
        ),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_traced_call_cannot_take(call, name):
    _, output, run = CALLS[name]
    for argument in (output, "stream"):
        with (
            SeenByDispatch(),
            pytest.raises(InvalidArgumentError, match=f"{argument}: is given, must be None where"),
        ):
            run(call, **{argument: call["q"] if argument == output else 0})


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_refused(call, name):
    argument, _, run = CALLS[name]
    main = call["q"][None, 0] if name == "merge_states" else call[argument]
    leaf = {argument: main.clone().requires_grad_()}
    with pytest.raises(UnsupportedError, match=f"{argument}: requires a gradient"):
        run(call, **leaf)
    with torch.no_grad():
        run(call, **leaf)
