"""Continuous batching of Hugging Face Transformers, generate_batch(), by name.

On the CPU greedy tokens in FP32 are held to those of generate() with Transformers' own attention,
one sequence at a time; on a GPU the log probabilities of the tokens in BF16.
"""

import functools
import inspect
import warnings

import pytest

from tilewright import UnsupportedError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.generation.continuous_batching")

import small_models
import tilewright.transformers
from tilewright import _paged_attention
from tilewright._paged_cache import PagedLayer
from tilewright.transformers import paged_attention_forward

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SIZES = small_models.SIZES | {
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
}
# name: (model, what its configuration adds, the implementation to compare with)
MODELS = {
    "llama": ("Llama", {}, "sdpa"),
    "mistral, window of two pages": ("Mistral", {"sliding_window": 32}, "sdpa"),
    "mistral, window of a page and a half": ("Mistral", {"sliding_window": 24}, "sdpa"),
    "gemma2, window and soft cap": (
        *("Gemma2", {"sliding_window": 32, "attn_logit_softcapping": 2.0}),
        "eager",
    ),
    "gpt-oss, window and sinks": ("GptOss", {"sliding_window": 11} | small_models.EXPERTS, "eager"),
}
PAGE_SIZE = 16
LENGTHS = (5, 40, 17, 70, 1)
NEW_TOKENS = 24


@pytest.fixture(autouse=True)
def registered():
    tilewright.transformers.register()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Transformers' of itself
        yield


def make_model(name, device="cpu"):
    kind, extra, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **extra)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(device).eval()
    model._supports_flash_attn = False  # or Transformers may take it where it is asked for its own
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim > 1 or parameter_name.endswith("sinks"):
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def make_prompts():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 100, (length,), generator=generator).tolist() for length in LENGTHS]


def generate_each(model, prompts):
    """The tokens that follow each prompt, by generate()."""
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "disable_compile": True}
    following = []
    for prompt in prompts:
        tokens = torch.tensor([prompt], device=model.device)
        mask = torch.ones_like(tokens)
        following.append(model.generate(tokens, attention_mask=mask, **options)[0, len(prompt) :])
    return [tokens.tolist() for tokens in following]


@functools.cache
def expected_of(name):
    """What follows each prompt by Transformers' own attention."""
    model = make_model(name)
    model.set_attn_implementation(MODELS[name][2])
    return generate_each(model, make_prompts())


def generate_batch(model, prompts, page_size=PAGE_SIZE, **settings):
    """What follows each prompt, by generate_batch() in few tokens at a time."""
    config_class = transformers.ContinuousBatchingConfig
    names = inspect.signature(config_class).parameters
    settings |= {"page_size" if "page_size" in names else "block_size": page_size}
    config = config_class(num_blocks=64, max_batch_tokens=32, **settings)
    generation_config = transformers.GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    outputs = model.generate_batch(
        prompts, generation_config=generation_config, continuous_batching_config=config
    )
    by_number = sorted(outputs.values(), key=lambda output: int(output.request_id.split("_")[1]))
    for output in by_number:
        assert output.error is None, output.error
    return by_number


@pytest.mark.parametrize("has_block_tables", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_generates_the_same_tokens_as_one_by_one(name, has_block_tables):
    model = make_model(name)
    model.set_attn_implementation("tilewright")
    settings = {} if has_block_tables else {"max_blocks_per_request": 0}
    outputs = generate_batch(model, make_prompts(), **settings)
    assert [output.generated_tokens for output in outputs] == expected_of(name)
    assert model.config._attn_implementation == "tilewright"  # again


@pytest.mark.parametrize("page_size", [8, 64])
def test_pages_of_other_sizes(page_size):
    name = "gpt-oss, window and sinks"
    model = make_model(name)
    model.set_attn_implementation("tilewright")
    outputs = generate_batch(model, make_prompts(), page_size)
    assert [output.generated_tokens for output in outputs] == expected_of(name)


def test_sequences_that_share_a_prefix():
    model = make_model("llama")
    prefix = make_prompts()[3]
    prompts = [prefix, [*prefix[:40], 7, 8], [*prefix, 9]]
    model.set_attn_implementation("sdpa")
    expected = generate_each(model, prompts)
    model.set_attn_implementation("tilewright")
    outputs = generate_batch(model, prompts)
    assert [output.generated_tokens for output in outputs] == expected


def test_other_implementations_stay_transformers_own():
    model, prompts = make_model("llama"), make_prompts()
    model.set_attn_implementation("sdpa")
    outputs = generate_batch(model, prompts)
    assert [output.generated_tokens for output in outputs] == expected_of("llama")
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="flex_attention"):
        generate_batch(model, prompts)


@pytest.fixture
def reads(monkeypatch):
    """What calls of attention over the cache and over tensors a test makes, and gathered rows."""
    made = []

    def count(owner, function, name):
        original = getattr(owner, function)

        def counted(*arguments, **options):
            made.append(name(options) if callable(name) else name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, function, counted)

    def of_cache(options):
        return "appended" if options.get("k") is not None else "pages"

    count(_paged_attention, "attention_with_kvcache", of_cache)
    count(_paged_attention, "attention", "tensors")
    count(PagedLayer, "gather", "gathered")
    return made


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("llama", {}, {"appended", "pages", "tensors"}),
        ("llama", {"max_blocks_per_request": 0}, {"pages", "tensors"}),
        ("gpt-oss, window and sinks", {}, {"pages", "tensors", "gathered"}),
    ],
)
def test_caches_are_read_in_place(reads, name, settings, expected):
    model = make_model(name)
    model.set_attn_implementation("tilewright")
    generate_batch(model, make_prompts(), **settings)
    assert set(reads) == expected
    assert reads.count("gathered") < reads.count("tensors")


def test_a_window_of_many_pages_is_read_in_place_by_single_tokens(reads):
    model = make_model("mistral, window of two pages")
    model.set_attn_implementation("tilewright")
    generate_batch(model, [make_prompts()[0]])
    assert set(reads) == {"tensors", "pages"}


class Layer(torch.nn.Module):
    is_causal = True
    layer_idx = 0


# name: (arguments of the call, argument at fault, a part of the message)
REFUSED = {
    "no cache": ({"cache": None}, "cache", "is absent"),
    "an unknown cache": ({}, "cache", "is a object that this version"),
    "a mask": ({"attention_mask": torch.zeros(1, 1, 3, 3)}, "attention_mask", "must be left out"),
    "dropout": ({"dropout": 0.1}, "dropout", "must be left out"),
    "no causality": ({"is_causal": False}, "is_causal", "is False, must be True"),
    "an argument that nobody knows": (
        {"block_indices": torch.zeros(1)},
        *("block_indices", "is given, must be left out"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_is_refused_by_name(refused, name):
    arguments, argument, message = REFUSED[name]
    x = torch.zeros(1, 2, 3, 16)
    given = {"attention_mask": None, "cache": type("object", (), {})()} | arguments
    with refused(UnsupportedError, argument, message):
        paged_attention_forward(Layer(), x, x, x, **given)


def test_a_window_that_the_cache_has_not_is_refused():
    model = make_model("mistral, window of two pages")
    model.set_attn_implementation("tilewright")
    for layer in model.model.layers:
        layer.self_attn.forward = without_window(layer.self_attn)
    with pytest.raises(AssertionError, match="sliding_window: is None for a layer whose cache"):
        generate_batch(model, make_prompts())


def without_window(attention):
    """The forward() of a model that leaves the window to its mask."""
    original = attention.forward

    def forward(*arguments, **options):
        window, attention.config.sliding_window = attention.config.sliding_window, None
        try:
            return original(*arguments, **options)
        finally:
            attention.config.sliding_window = window

    return forward


def errors_of_logprobs(model, prompts, outputs):
    """Of the log probabilities of greedy tokens, of eager's in FP32 for the same tokens."""
    model.float()
    model.set_attn_implementation("eager")
    errors = []
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = torch.tensor([prompt + output.generated_tokens], device=model.device)
        logits = model(tokens).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(1).gather(1, tokens[0, len(prompt) :, None])[:, 0]
        errors.append(torch.tensor(output.logprobs, device=model.device) - expected)
    return torch.cat(errors)


@needs_cuda
@pytest.mark.parametrize("has_graphs", [False, True])
@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("name", MODELS)
def test_bf16_log_probabilities_on_a_gpu(name, page_size, has_graphs):
    """As far from FP32's as those of Transformers' own attention in BF16, give or take."""
    prompts, errors = make_prompts(), {}
    for implementation in (MODELS[name][2], "tilewright"):
        model = make_model(name, "cuda").bfloat16()
        model.set_attn_implementation(implementation)
        settings = {"return_logprobs": True}
        settings["use_cuda_graph"] = has_graphs and implementation == "tilewright"
        outputs = generate_batch(model, prompts, page_size, **settings)
        errors[implementation] = errors_of_logprobs(model, prompts, outputs).square().mean().sqrt()
    theirs, ours = errors.values()
    assert ours < 2 * theirs
