"""Families of Hugging Face Transformers, small: they agree with eager attention or are refused.

A choice of those that transformers_sweep.py goes through.
"""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.models.auto import configuration_auto

import transformers_sweep

# (kind, model type, class), each without a window and, where it may have one, with it
AGREEING = (
    ("CausalLM", "llama", "LlamaForCausalLM"),
    ("CausalLM", "mistral", "MistralForCausalLM"),
    ("CausalLM", "gemma2", "Gemma2ForCausalLM"),
    ("CausalLM", "gpt_oss", "GptOssForCausalLM"),
    ("CausalLM", "deepseek_v3", "DeepseekV3ForCausalLM"),
    ("Seq2SeqLM", "bart", "BartForConditionalGeneration"),
    ("MaskedLM", "modernbert", "ModernBertForMaskedLM"),
    ("ZeroShotImage", "siglip", "SiglipModel"),
    ("SpeechSeq2Seq", "whisper", "WhisperForConditionalGeneration"),
)
# The same, whether it has a window, and the argument by which all its cases are refused
REFUSED = (
    ("CausalLM", "minimax_m3_vl_text", "MiniMaxM3VLForCausalLM", False, "block_indices"),
    ("CausalLM", "bigbird_pegasus", "BigBirdPegasusForCausalLM", False, "is_causal"),
    ("CausalLM", "phimoe", "PhimoeForCausalLM", True, "sliding_window"),
    ("Seq2SeqLM", "t5gemma", "T5GemmaForConditionalGeneration", True, "sliding_window"),
    ("CTC", "parakeet_ctc", "ParakeetForCTC", False, "attention_mask"),
)
READING_PADDING = ("CausalLM", "recurrent_gemma", "RecurrentGemmaForCausalLM")


@pytest.fixture(autouse=True, scope="module")
def prepared():
    transformers_sweep.prepare()


def check(kind, model_type, name, with_window=False):
    if model_type not in configuration_auto.CONFIG_MAPPING:
        pytest.skip(f"Transformers {transformers_sweep.transformers.__version__} has no {name}")
    cases = transformers_sweep.check(kind, model_type, name, with_window)
    if cases.get("continuous batching", "").startswith("eager fails"):  # Transformers has it not
        del cases["continuous batching"]
    return cases


@pytest.mark.parametrize("with_window", [False, True])
@pytest.mark.parametrize("family", AGREEING, ids=lambda family: family[1])
def test_families_that_agree(family, with_window):
    cases = check(*family, with_window)
    if with_window and not cases:
        pytest.skip("has no window")
    assert set(cases.values()) == {"agrees"}, cases


@pytest.mark.parametrize("family", REFUSED, ids=lambda family: family[1])
def test_families_that_are_refused_by_name(family):
    *family, with_window, argument = family
    cases = check(*family, with_window)
    batching = cases.pop("continuous batching", "agrees")  # which makes no masks
    assert batching == "agrees" or batching.startswith("refused: "), batching
    assert cases and all(case.startswith(f"refused: {argument}: ") for case in cases.values()), (
        cases
    )


def test_a_family_whose_recurrence_reads_padding(ran):
    cases = check(*READING_PADDING)
    assert cases.pop("whole") == "agrees"
    for case in ran(cases.values()):
        assert case.startswith("refused: attention_mask: has padding")
