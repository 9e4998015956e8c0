"""Small random models of Hugging Face Transformers: logits against its own implementations.

On the CPU, and on a GPU where there is one. Nothing is downloaded.
"""

import re

import pytest

import tilewright
from tilewright import UnsupportedError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tilewright.transformers
from small_models import EXPERTS, SIZES
from tilewright._key_mask import KeyMask, key_mask
from tilewright.transformers import attention_forward

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ENCODER_SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
}
# name: (model, what its configuration adds, the implementation to compare with)
MODELS = {
    "llama": ("Llama", {}, "sdpa"),
    "mistral, window": ("Mistral", {"sliding_window": 7}, "sdpa"),
    "gemma2, window and soft cap": (
        *("Gemma2", {"sliding_window": 7, "attn_logit_softcapping": 2.0}),
        "eager",
    ),
    "gpt-oss, window and sinks": ("GptOss", {"sliding_window": 7} | EXPERTS, "eager"),
}
LENGTH = 21
PADDING = (5, 0, 11)  # tokens of each row of a batch


@pytest.fixture(autouse=True)
def registered():
    tilewright.transformers.register()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def make_model(kind, extra=None, device="cpu", dtype=torch.float32):
    config = getattr(transformers, f"{kind}Config")(**SIZES, **(extra or {}))
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model.to(device, dtype).eval()


def make_tokens(device="cpu"):
    return torch.randint(3, SIZES["vocab_size"], (len(PADDING), LENGTH), device=device)


def make_mask(side, device="cpu"):
    mask = torch.ones((len(PADDING), LENGTH), dtype=torch.int64, device=device)
    for row, count in zip(mask, PADDING, strict=True):
        row[slice(count) if side == "left" else slice(LENGTH - count, None)] = 0
    return mask


def logits(model, implementation, tokens, mask=None):
    model.set_attn_implementation(implementation)
    return model(tokens, attention_mask=mask).logits.float()


def relative_error(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_on_the_cpu(name, side):
    kind, extra, implementation = MODELS[name]
    model, tokens = make_model(kind, extra), make_tokens()
    mask = side and make_mask(side)
    expected = logits(model, implementation, tokens, mask)
    actual = logits(model, "tilewright", tokens, mask)
    assert actual.isfinite().all()
    there = slice(None) if mask is None else mask.bool()
    assert relative_error(actual[there], expected[there]) < 1e-5


@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("name", ["llama", "gpt-oss, window and sinks"])
def test_bf16_logits(name, device, side):
    """As far from fp32's logits as those of Transformers' own in bf16 are, give or take."""
    kind, extra, implementation = MODELS[name]
    model, tokens = make_model(kind, extra, device), make_tokens(device)
    mask = side and make_mask(side, device)
    there = slice(None) if mask is None else mask.bool()
    expected = logits(model, "eager", tokens, mask)[there]
    model.bfloat16()
    theirs = logits(model, implementation, tokens, mask)[there]
    try:
        actual = logits(model, "tilewright", tokens, mask)[there]
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert relative_error(actual, expected) < 1.5 * relative_error(theirs, expected)
    assert relative_error(actual, theirs) < 2e-2


@pytest.mark.parametrize("chunk", [None, 6])
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["llama", "mistral, window", "gpt-oss, window and sinks"])
def test_generates_the_same_tokens(name, cache, chunk):
    model, tokens, mask = make_model(*MODELS[name][:2]), make_tokens(), make_mask("left")
    results = []
    for implementation in (MODELS[name][2], "tilewright"):
        model.set_attn_implementation(implementation)
        results.append(
            model.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=10,
                do_sample=False,
                cache_implementation=cache,
                prefill_chunk_size=chunk,
                disable_compile=True,
            )
        )
    assert torch.equal(*results)


@pytest.mark.parametrize("cache", [None, "static"])
def test_padded_caches_are_read_in_place(monkeypatch, cache):
    lengths = []

    def note(q, k, v, cache_seqlens, **options):
        lengths.append(tuple(cache_seqlens.tolist()))
        return tilewright.attention_with_kvcache(q, k, v, cache_seqlens, **options)

    monkeypatch.setattr(tilewright.transformers, "attention_with_kvcache", note)
    model, mask = make_model("Llama"), make_mask("left")
    model.set_attn_implementation("tilewright")
    options = {"attention_mask": mask, "max_new_tokens": 4, "disable_compile": True}
    model.generate(make_tokens(), **options, do_sample=False, cache_implementation=cache)
    steps = [(LENGTH + i,) * len(PADDING) for i in range(1, 4)]
    assert lengths == [step for step in steps for _ in range(SIZES["num_hidden_layers"])]


def test_prefill_in_two_parts():
    model, tokens, mask = make_model("Llama"), make_tokens(), make_mask("left")
    expected = logits(model, "tilewright", tokens, mask)[:, 13:]
    first = model(tokens[:, :13], attention_mask=mask[:, :13], use_cache=True)
    second = model(tokens[:, 13:], attention_mask=mask, past_key_values=first.past_key_values)
    torch.testing.assert_close(second.logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt-oss, window and sinks"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("cache", [None, "static"])
def test_bf16_logits_of_generated_tokens(name, device, cache):
    """Each row of a padded batch, of fp32's logits for the same tokens."""
    kind, extra, implementation = MODELS[name]
    model, tokens, mask = (
        make_model(kind, extra, device),
        make_tokens(device),
        make_mask("left", device),
    )
    errors = []
    for each in (implementation, "tilewright"):
        model.bfloat16().set_attn_implementation(each)
        generated = model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=10,
            min_new_tokens=10,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
            return_dict_in_generate=True,
            output_logits=True,
        )
        whole = torch.nn.functional.pad(mask, (0, 10), value=1)
        model.float()
        expected = logits(model, "eager", generated.sequences, whole)[:, LENGTH - 1 : -1]
        errors.append(relative_error(torch.stack(generated.logits, 1).float(), expected))
    assert errors[1] < 1.5 * errors[0]


def test_a_step_over_a_static_cache_compiles_to_one_graph():
    torch.compiler.reset()
    model, tokens, mask = make_model("Llama"), make_tokens(), make_mask("left")
    model.set_attn_implementation("tilewright")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    results = []
    for run in (model, compiled):
        cache = transformers.StaticCache(config=model.config, max_cache_len=LENGTH + 5)
        before, last = tokens[:, :-1], tokens[:, -1:]
        model(before, attention_mask=mask[:, :-1], past_key_values=cache)
        results.append(run(last, attention_mask=mask, past_key_values=cache).logits)
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_padded", [False, True])
def test_compiles_to_one_graph(is_padded):
    torch.compiler.reset()
    model, tokens = make_model("Llama"), make_tokens()
    mask = make_mask("left") if is_padded else None
    expected = logits(model, "tilewright", tokens, mask)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    actual = compiled(tokens, attention_mask=mask).logits
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


ENCODERS = {
    "Bert": {"num_attention_heads": 4},
    "ModernBert": {"num_attention_heads": 4, "local_attention": 8, "global_attn_every_n_layers": 2},
    "Bart": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2},
}


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_bidirectional_and_cross_attention(kind, side):
    config = getattr(transformers, f"{kind}Config")(**(ENCODER_SIZES | ENCODERS[kind]))
    model, tokens = getattr(transformers, f"{kind}Model")(config).eval(), make_tokens()
    arguments = {"attention_mask": side and make_mask(side)}
    there = slice(None) if side is None else arguments["attention_mask"].bool()
    if kind == "Bart":
        arguments["decoder_input_ids"] = tokens[:, :9]
        there = slice(None)
    states = []
    for implementation in ("sdpa", "tilewright"):
        model.set_attn_implementation(implementation)
        states.append(model(tokens, **arguments).last_hidden_state[there])
    torch.testing.assert_close(*states, rtol=0, atol=1e-5)


def with_a_hole(mask):
    mask[0, LENGTH // 2] = 0
    return mask


def test_padding_between_tokens_is_nan_where_its_values_are_not_known():
    torch.compiler.reset()
    model, tokens, mask = make_model("Llama"), make_tokens(), make_mask("right")
    expected = logits(model, "tilewright", tokens, mask)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    actual = compiled(tokens, attention_mask=with_a_hole(mask)).logits
    assert actual[0].isnan().all()
    torch.testing.assert_close(actual[1:], expected[1:], rtol=0, atol=1e-5)


# name: (arguments of the model, argument at fault, a part of the message)
REFUSED = {
    "padding between tokens": (
        lambda: {"attention_mask": with_a_hole(make_mask("right"))},
        *("attention_mask", "has padding between tokens, must be at the ends"),
    ),
    "a dense mask": (
        lambda: {"attention_mask": torch.ones(len(PADDING), 1, LENGTH, LENGTH).bool()},
        *("attention_mask", "has rank 4 and is not of tilewright's mask function"),
    ),
    "sequences packed by their positions": (
        lambda: {
            "position_ids": (torch.arange(LENGTH) % 7).expand(len(PADDING), -1),
            "use_cache": False,
        },
        *("attention_mask", "is more than causal, a sliding window and padding"),
    ),
    "weights as an output": (
        lambda: {"output_attentions": True},
        *("output_attentions", "is given, must be left out"),
    ),
    "an argument that nobody knows": (
        lambda: {"block_indices": torch.zeros(1)},
        *("block_indices", "is given, must be left out"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_is_refused_by_name(refused, name):
    make_arguments, argument, message = REFUSED[name]
    model = make_model("Llama")
    model.set_attn_implementation("tilewright")
    with refused(UnsupportedError, argument, message):
        model(make_tokens(), **make_arguments())


def test_arguments_that_change_nothing_are_passed_over():
    model, tokens = make_model("Llama"), make_tokens()
    expected = logits(model, "tilewright", tokens)
    options = {"use_cache": True, "output_hidden_states": True, "cache_position": torch.arange(9)}
    assert torch.equal(model(tokens, **options).logits, expected)


@pytest.mark.parametrize("side", [None, "left"])
def test_a_decoder_used_as_an_encoder(side):
    model, tokens, mask = make_model("Llama"), make_tokens(), None
    there = slice(None)
    if side:
        mask = make_mask(side)
        there = mask.bool()
    results = []
    for implementation in ("eager", "tilewright"):
        model.set_attn_implementation(implementation)
        results.append(model(tokens, attention_mask=mask, is_causal=False).logits[there])
    causal = model(tokens, attention_mask=mask).logits[there]
    assert relative_error(results[1], results[0]) < 1e-5 < relative_error(causal, results[0])


class Layer(torch.nn.Module):
    is_causal = True


def run_layer(q_length, kv_length, **options):
    """attention_forward() with a causal mask of a window of 7, a whole one where `window` is 0."""
    window = options.pop("window", 7)
    make_mask_function = transformers.masking_utils.sliding_window_causal_mask_function
    of_window = {"local_size": window, "mask_function": make_mask_function(window)}
    mask = key_mask(2, q_length, kv_length, kv_length - q_length, **(of_window if window else {}))
    q, k = torch.randn(2, 4, q_length, 16), torch.randn(2, 4, kv_length, 16)
    out, _ = attention_forward(Layer(), q, k, k, options.pop("mask", mask), **options)
    window = {"window_size": (window - 1, 0)} if window else {}
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    assert torch.equal(out, tilewright.attention(q, k, k, causal=True, **window))


def test_what_a_call_and_its_mask_may_say():
    run_layer(9, 9, sliding_window=7)
    run_layer(1, 9, sliding_window=7, is_causal=False)  # one query, the last
    run_layer(7, 7)  # all are in the window
    run_layer(7, 7, window=0, sliding_window=7)
    run_layer(9, 9, window=0)


@pytest.mark.parametrize(
    ("arguments", "argument", "message"),
    [
        ({"q_length": 9, "kv_length": 9}, "sliding_window", "is None .* mask says 7"),
        ({"q_length": 1, "kv_length": 9}, "sliding_window", "is None .* mask says 7"),
        (
            {"q_length": 9, "kv_length": 9, "sliding_window": 6},
            *("sliding_window", "is 6 .* mask says 7"),
        ),
        (
            {"q_length": 9, "kv_length": 9, "window": 0, "sliding_window": 8},
            *("sliding_window", "is 8 .* mask says None"),
        ),
        (
            {"q_length": 9, "kv_length": 9, "window": 0, "mask": None},
            *("is_causal", "is True .* mask says False"),
        ),
        (
            {"q_length": 9, "kv_length": 9, "mask": torch.ones(2, 9)},
            *("attention_mask", "has rank 2 and is not of tilewright's mask function"),
        ),
        (
            {"q_length": 9, "kv_length": 9, "window": 0, "mask": KeyMask(2, 9, 10, True, None)},
            *("attention_mask", "is for .2, 1, 9, 10., must be for .2, 1, 9, 9."),
        ),
    ],
)
def test_a_call_that_says_something_else_than_its_mask(refused, arguments, argument, message):
    with refused(UnsupportedError, argument, "") as raised:
        run_layer(**arguments)
    assert re.search(message, str(raised.value))


@pytest.mark.parametrize(
    "use",
    [
        lambda mask: mask.dtype,
        lambda mask: mask[:, :, :, :5],
        lambda mask: torch.ones(2) + mask,
        lambda mask: torch.where(mask, 0, 1),
    ],
)
def test_a_mask_that_a_model_takes_for_a_tensor_is_refused_by_name(use):
    with pytest.raises(UnsupportedError, match="attention_mask: is asked for .* own code"):
        use(key_mask(2, 9, 9))
    assert not hasattr(key_mask(2, 9, 9), "dtype")


def test_mask_functions_of_a_models_own_are_refused():
    both = transformers.masking_utils.and_masks(lambda *indices: indices[2] >= 0)
    with pytest.raises(UnsupportedError, match="attention_mask: is more than causal"):
        key_mask(2, 9, 9, mask_function=both)


def test_dropout_is_refused():
    model = make_model("Llama", {"attention_dropout": 0.1}).train()
    model.set_attn_implementation("tilewright")
    with pytest.raises(UnsupportedError, match="dropout: is given, must be left out"):
        model(make_tokens())


def test_position_biases_are_refused():
    from transformers.models.t5 import modeling_t5

    if not hasattr(modeling_t5, "ALL_ATTENTION_FUNCTIONS"):
        pytest.skip(f"Transformers {transformers.__version__} has T5's attention to itself")
    config = transformers.T5Config(vocab_size=100, d_model=64, d_kv=16, num_layers=1, num_heads=4)
    model = transformers.T5EncoderModel(config).eval()
    model.set_attn_implementation("tilewright")
    with pytest.raises(UnsupportedError, match="position_bias: is given, must be left out"):
        model(make_tokens())
