"""Holds every family of Transformers that can be built small to its own eager attention.

    python tests/python/transformers_sweep.py [--kinds CausalLM,CTC] [--families llama,t5gemma]

A family is a class that Transformers' automatic classes know. It is built with a few small layers
and random weights, without a window and with one, nothing is downloaded, and runs on the CPU with
attn_implementation "eager" and "tilewright": a whole batch, one padded on either side, greedy
generation, and continuous batching, where Transformers has it for the family. Prints what became of
each and the totals. Fails where a result differs: what the adapter cannot do, it must refuse. Takes
about half an hour.
"""

import argparse
import collections
import inspect
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

import tilewright
import tilewright.transformers

KINDS = {
    "CausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "Seq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "TextEncoding": "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    "ImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "Image": "MODEL_FOR_IMAGE_MAPPING_NAMES",
    "ZeroShotImage": "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "SpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "CTC": "MODEL_FOR_CTC_MAPPING_NAMES",
}
GENERATING = ("CausalLM", "Seq2SeqLM")

VOCABULARY, LENGTH, WINDOW = 128, 40, 7
PADDING = (0, 5, 11)  # tokens of each row of a batch
MAX_PARAMETERS = 40_000_000
MAX_SECONDS = 120  # for a family
TOLERANCE = 1e-4

# What small configurations have, under each name that it goes by.
SMALL = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "image_size": 32,
    "patch_size": 8,
    "num_mel_bins": 16,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim"), 64),
    "projection_dim": 64,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "ffn_hidden_size"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    "expert_ffn_hidden_size": 32,
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "depth"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_dim"), 16),
    **dict.fromkeys(("v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"), 16),
    "query_pre_attn_scalar": 16,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 8,
    "index_block_size": 4,
    "index_topk_blocks": 2,
}
WINDOWED = {
    "sliding_window": WINDOW,
    "local_attention": WINDOW + 1,
    "use_sliding_window": True,
    "max_window_layers": 1,
}
# Tried in turn, for configurations that want something else; None: the default.
CHANGES = (
    {},
    {"num_hidden_layers": 4},
    {"num_hidden_layers": 8},
    {"hidden_size": 512, "head_dim": 128},
    {"head_dim": None},
    {"head_dim": None, "num_key_value_heads": None},
    {"num_key_value_heads": 4},
    {"head_dim": None, "intermediate_size": 128, "hidden_size": 128},
    dict.fromkeys(SMALL) | {"vocab_size": VOCABULARY, "num_hidden_layers": 2},
)
# For what the rules above do not bring about.
SPECIAL = {"minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse"] * 2}}


class TooSlow(BaseException):
    """Unlike an Exception, which a model may raise for many reasons."""


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """A function's result or what it raised."""
    try:
        return function(*arguments), None
    except Exception as error:  # noqa: BLE001  # whatever a model or configuration does not like
        return None, error


# ---- Building


def config_arguments(config_class: type, small: dict[str, Any]) -> dict[str, Any]:
    """Those of `small` that a configuration has, and its parts' ones."""
    default = config_class()
    arguments = {name: value for name, value in small.items() if hasattr(default, name)}
    for name in getattr(config_class, "sub_configs", None) or {}:
        part = type(getattr(default, name, None))
        if issubclass(part, transformers.PreTrainedConfig):
            arguments[name] = part(**config_arguments(part, small))
    if "num_hidden_layers" in small:
        arguments |= layer_of_each_type(default)
    return arguments | SPECIAL.get(config_class.model_type, {})


def layer_of_each_type(default: transformers.PreTrainedConfig) -> dict[str, Any]:
    """One layer of each type that the default configuration has, but two at least."""
    types = vars(default).get("layer_types")
    if not isinstance(types, list | tuple):
        return {}
    first = [types.index(each) for each in dict.fromkeys(types)]
    first = first * 2 if len(first) == 1 else first
    arguments: dict[str, Any] = {"num_hidden_layers": len(first)}
    for name, value in vars(default).items():
        if isinstance(value, list | tuple) and len(value) == len(types) > 3:
            arguments[name] = [value[i] for i in first]
    return arguments


def build(model_class: type, config_class: type, small: dict[str, Any]) -> torch.nn.Module:
    config = config_class(**config_arguments(config_class, small))
    with torch.device("meta"):
        parameters = sum(p.numel() for p in model_class(config).parameters())
    if parameters > MAX_PARAMETERS:
        raise ValueError(f"has {parameters} parameters")
    torch.manual_seed(0)
    model = model_class(config).float().eval()
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and (parameter.ndim > 1 or name.endswith("sinks")):
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def build_and_run(model_class: type, config_class: type, small: dict[str, Any]) -> torch.nn.Module:
    small = {name: value for name, value in small.items() if value is not None}
    model = build(model_class, config_class, small)
    model.set_attn_implementation("eager")
    forward(model)
    return model


def first_that_runs(model_class: type, config_class: type, with_window: bool) -> torch.nn.Module:
    """Raises what the first of CHANGES raised where none runs."""
    errors = []
    for change in CHANGES:
        small = SMALL | change | (WINDOWED if with_window else {})
        model, error = attempt(build_and_run, model_class, config_class, small)
        if error is None:
            return model
        errors.append(error)
    raise errors[0]


def has_window(model: torch.nn.Module) -> bool:
    parts = ("text_config", "encoder", "decoder")
    configs = [model.config, *(getattr(model.config, part, None) for part in parts)]
    return any(
        getattr(config, name, None) == WINDOWED[name]
        for config in configs
        for name in ("sliding_window", "local_attention")
    )


# ---- Running


def inputs_of(model: torch.nn.Module, padded: str | None = None) -> dict[str, torch.Tensor]:
    """What a model's forward() takes, of random tokens, pixels or sound."""
    torch.manual_seed(1)
    names = inspect.signature(model.forward).parameters
    tokens = torch.randint(5, 100, (len(PADDING), LENGTH))
    tokens[:, LENGTH // 2] = SMALL["eos_token_id"]  # where some look for a sentence's features
    inputs = {}
    if "input_ids" in names:
        inputs["input_ids"] = tokens
        if padded:
            mask = torch.ones_like(tokens)
            for row, count in zip(mask, PADDING, strict=True):
                row[slice(count) if padded == "left" else slice(LENGTH - count, None)] = 0
            inputs |= {"input_ids": tokens * mask, "attention_mask": mask}
    if "pixel_values" in names and ("input_ids" not in names or "logit_scale" in dir(model)):
        inputs["pixel_values"] = pixels_for(model.config)
    if "input_features" in names and "input_ids" not in names:
        inputs["input_features"] = sound_for(model.config)
    if "input_values" in names and "input_ids" not in names:
        inputs["input_values"] = torch.randn(len(PADDING), 4000)
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = tokens[:, :9]
    return inputs


def find(config: Any, *names: str) -> Any:
    """The first value under one of the names, of a configuration or its parts."""
    parts = (None, "vision_config", "audio_config", "encoder", "encoder_config")
    for part in parts:
        for name in names:
            value = getattr(getattr(config, part, None) if part else config, name, None)
            if value is not None:
                return value
    return None


def pixels_for(config: Any) -> torch.Tensor:
    size = find(config, "image_size") or SMALL["image_size"]
    size = size if isinstance(size, int) else size[0]
    return torch.randn(len(PADDING), find(config, "num_channels") or 3, size, size)


def sound_for(config: Any) -> torch.Tensor:
    bins = find(config, "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
    if config.model_type == "whisper":
        return torch.randn(len(PADDING), bins, 2 * config.max_source_positions)
    return torch.randn(len(PADDING), 100, bins or 80)


def forward(model: torch.nn.Module, padded: str | None = None) -> list[torch.Tensor]:
    """The first results of a model, of the tokens that are no padding."""
    inputs = inputs_of(model, padded)
    with torch.no_grad():
        results = model(**inputs, return_dict=True)
    wanted = ("logits", "last_hidden_state", "logits_per_image", "pooler_output")
    found = [results[name] for name in wanted if torch.is_tensor(results.get(name))]
    found = found or [x for x in results.values() if torch.is_tensor(x)][:1]
    mask = inputs.get("attention_mask")
    if mask is None:
        return found
    return [x[mask.bool()] if x.shape[:2] == mask.shape else x for x in found]


def generate(model: torch.nn.Module, cache: str | None = None) -> list[torch.Tensor]:
    """The logits of greedy tokens after a padded batch; more tokens than a window has."""
    inputs = inputs_of(model, "left")
    inputs = {name: inputs[name][:, :21] for name in ("input_ids", "attention_mask")}
    results = model.generate(
        **inputs,
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        cache_implementation=cache,
        disable_compile=True,
    )
    return [torch.stack(results.logits)]


GREEDY = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": -1}


def prompts_of(model: torch.nn.Module) -> list[list[int]]:
    tokens = inputs_of(model)["input_ids"]
    return [row[: 21 - count].tolist() for row, count in zip(tokens, PADDING, strict=True)]


def generate_each(model: torch.nn.Module) -> list[torch.Tensor]:
    """The log probabilities of greedy tokens after each prompt."""
    logprobs = []
    for prompt in prompts_of(model):
        results = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            **GREEDY,
            return_dict_in_generate=True,
            output_logits=True,
        )
        new = results.sequences[0, len(prompt) :, None]
        logprobs.append(torch.cat(results.logits).log_softmax(1).gather(1, new)[:, 0])
    return logprobs


def generate_batch(model: torch.nn.Module) -> list[torch.Tensor]:
    """The same by continuous batching."""
    prompts = prompts_of(model)
    PAGED.error = None
    outputs = model.generate_batch(
        prompts,
        generation_config=transformers.GenerationConfig(**GREEDY),
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            num_blocks=32, max_batch_tokens=16, return_logprobs=True, **{page_size_name(): 16}
        ),
    )
    failed = [output.error for output in outputs.values() if output.error]
    if failed or len(outputs) < len(prompts):
        raise PAGED.error or RuntimeError(*failed[:1])
    in_order = sorted(outputs.items(), key=lambda item: int(item[0].rpartition("_")[2]))
    return [torch.tensor(output.logprobs) for _, output in in_order]


def page_size_name() -> str:
    names = inspect.signature(transformers.ContinuousBatchingConfig).parameters
    return "page_size" if "page_size" in names else "block_size"


# ---- Comparing


class Counted:
    """One of the adapter's attention functions, with a count of its calls and its last error."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0
        self.error: tilewright.Error | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        try:
            return self.function(*args, **options)
        except tilewright.Error as error:  # which continuous batching makes a text of
            self.error = error
            raise


COUNTED = Counted(tilewright.transformers.attention_forward)
PAGED = Counted(tilewright.transformers.paged_attention_forward)


Run = Callable[..., list[torch.Tensor]]


def outcome_of(
    model: torch.nn.Module, run: Run, *how: str, run_eagerly: tuple[Run, ...] = ()
) -> str:
    """ "agrees", "refused: ...", "differs: ...", or why neither can be said.

    Where eager attention runs in several ways, of which one may be wrong, one must be agreed with.
    """
    model.set_attn_implementation("eager")
    expected = []
    for run_so in run_eagerly or (run,):
        results, error = attempt(run_so, model, *how)
        if error:
            return f"eager fails: {first_line(error)}"
        expected.append(results)
    COUNTED.calls = PAGED.calls = 0
    model.set_attn_implementation("tilewright")
    actual, error = attempt(run, model, *how)
    if isinstance(error, tilewright.Error):
        return f"refused: {error}"
    if error:
        return f"fails: {first_line(error)}"
    if COUNTED.calls + PAGED.calls == 0:
        return "attention of its own"
    difference = min(
        max(relative_error(x, y) for x, y in zip(actual, each, strict=True)) for each in expected
    )
    return "agrees" if difference < TOLERANCE else f"differs: relative error {difference:.2g}"


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:120]


def cases_of(model: torch.nn.Module, kind: str) -> Iterator[tuple[str, str]]:
    """What became of each case of a model."""
    whole = outcome_of(model, forward)
    yield "whole", whole
    if whole == "attention of its own":
        return
    if "input_ids" in inputs_of(model):
        yield "padded on the left", outcome_of(model, forward, "left")
        yield "padded on the right", outcome_of(model, forward, "right")
    if kind in GENERATING:
        yield "generating", outcome_of(model, generate)
        yield "generating, static cache", outcome_of(model, generate, "static")
    if kind == "CausalLM":
        # Eager attention knows no soft cap there, and some models know no positions.
        ways = (generate_batch, generate_each)
        yield "continuous batching", outcome_of(model, generate_batch, run_eagerly=ways)


def stop(*details: Any) -> None:
    raise TooSlow(f"takes more than {MAX_SECONDS} s")


def check(kind: str, model_type: str, class_name: str, with_window: bool) -> dict[str, str]:
    """What became of a family: by case, or why it was not built. Empty where it has no window."""
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(MAX_SECONDS)
    try:
        model_class, error = attempt(getattr, transformers, class_name)
        if error is None:
            config_class = configuration_auto.CONFIG_MAPPING[model_type]
            model, error = attempt(first_that_runs, model_class, config_class, with_window)
        if error:
            return {"not built": first_line(error)}
        if with_window and not has_window(model):
            return {}
        return dict(cases_of(model, kind))
    except TooSlow as error:
        return {"not built": first_line(error)}
    finally:
        signal.alarm(0)


def verdict_of(cases: dict[str, str]) -> str:
    """A family's, of its cases'."""
    if "not built" in cases:
        return "not built"
    found = {case.partition(":")[0] for case in cases.values()} - {"eager fails"}
    for verdict in ("differs", "fails", "attention of its own"):
        if verdict in found:
            return verdict
    if found == {"agrees"}:
        return "agrees"
    return "agrees or is refused, by case" if "agrees" in found else "refused"


def families(kinds: list[str], wanted: list[str]) -> Iterator[tuple[str, str, str]]:
    for kind in kinds:
        for model_type, names in getattr(modeling_auto, KINDS[kind]).items():
            for name in [names] if isinstance(names, str) else names:
                if not wanted or model_type in wanted:
                    yield kind, model_type, name


def outcomes(kinds: list[str], wanted: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Of each family without a window, and with one where it may have one, by case."""
    for kind, model_type, name in families(kinds, wanted):
        cases = check(kind, model_type, name, with_window=False)
        yield f"{kind} {name}", cases
        if "not built" not in cases:
            cases = check(kind, model_type, name, with_window=True)
            if cases:
                yield f"{kind} {name}, window", cases


def prepare() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    tilewright.transformers.register()
    transformers.AttentionInterface.register(tilewright.transformers.NAME, COUNTED)
    transformers.AttentionInterface.register(tilewright.transformers.PAGED_NAME, PAGED)
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--families", default="")
    arguments = parser.parse_args()
    prepare()
    totals: collections.Counter[str] = collections.Counter()
    refusals: collections.Counter[str] = collections.Counter()
    wanted = [family for family in arguments.families.split(",") if family]
    for name, cases in outcomes(arguments.kinds.split(","), wanted):
        verdict = verdict_of(cases)
        totals[verdict] += 1
        refusals.update({case for case in cases.values() if case.startswith("refused")})
        details = "" if verdict == "agrees" else f": {cases}"
        print(f"{name}: {verdict}{details}", flush=True)
    for text, count in [*refusals.most_common(), *totals.most_common()]:
        print(f"{count:5} {text}")
    return 1 if totals["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
