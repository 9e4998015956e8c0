"""Hugging Face Transformers on tilewright.attention().

    import tilewright.transformers
    tilewright.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tilewright")

Causal, bidirectional and cross attention, grouped key/value heads as they are, sliding windows,
soft caps and sinks; batches padded on either side; generate() with dynamic and static caches, and
continuous batching, generate_batch(), whose paged cache is read in place. What it cannot do, it
refuses by name: other masks, dropout, arguments that it does not know, attention weights as an
output, and layers whose mask or paged cache does not say what their call says of causality and
window. Forward only.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from tilewright import _paged_attention
from tilewright._attention import attention
from tilewright._attention_with_kvcache import attention_with_kvcache
from tilewright._key_mask import KeyMask, has_holes, key_mask, unsupported, values_are_known

try:
    from tilewright import _continuous_batching
except (AttributeError, ImportError):  # of an older Transformers
    _continuous_batching = None

NAME = "tilewright"
PAGED_NAME = "tilewright_paged"  # what continuous batching gives models of that name for a while

# Arguments that models pass and that do not change what a layer computes. Any other that
# attention_forward() does not name must be None or False.
IGNORED = (
    "cache_position",
    "deterministic",  # results always are deterministic
    "encoder_hidden_states",  # of which key and value are made
    "image_sizes",
    "inputs_embeds",
    "labels",
    "logits_to_keep",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "past_key_values",  # of which key and value are made
    "position_ids",  # the mask function learns of packed sequences by them
    "return_dict",
    "use_cache",
)

# Families whose other layers read attention's results for padding, which are undefined.
READING_PADDING = ("diffusion_gemma_text", "recurrent_gemma")


def register() -> None:
    """Makes attn_implementation="tilewright" known to Transformers."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, key_mask)
    AttentionInterface.register(PAGED_NAME, paged_attention_forward)
    if _continuous_batching is not None:
        _continuous_batching.admit(NAME, PAGED_NAME)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: KeyMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function as Transformers calls it.

    query           (batch, heads, q_len, head_dim)
    key, value      (batch, kv_heads, kv_len, head_dim)
    attention_mask  what key_mask() made; None: every query sees every key
    is_causal       module.is_causal when None
    sliding_window  keys that a query sees on either side, its own included
    s_aux           (heads,), sinks

    Returns ((batch, q_len, heads, head_dim), None).
    """
    _refuse({"dropout": dropout or None} | others)
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    mask = _mask_of_sizes(attention_mask, q.shape[0], q.shape[1], k.shape[1])
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    _check_agreement(mask, is_causal, sliding_window)
    options = {
        "softmax_scale": scaling,
        "causal": mask.is_causal,
        "window_size": (-1, -1) if mask.window is None else (mask.window, mask.window),
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float(),
    }
    if mask.there is None:
        return attention(q, k, v, **options), None
    family = module.config.model_type if hasattr(module, "config") else None
    if family in READING_PADDING and not (values_are_known() and mask.there.all()):
        raise unsupported("attention_mask", f"has padding, which other layers of {family} read")
    if mask.q_length == 1 and (mask.is_causal or mask.window is None):
        out = _decode(q, k, v, mask.there, options)
    else:
        out = _padded_attention(q, k, v, mask.there, options)
    if not values_are_known():
        out = out.masked_fill(has_holes(mask.there)[:, None, None, None], torch.nan)
    return out, None


def paged_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cache: Any = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function as continuous batching calls it.

    query       (1, heads, tokens, head_dim): the new tokens of all sequences, one after the other
    key, value  (1, kv_heads, tokens, head_dim), likewise
    cache       Transformers' PagedAttentionCache, to which they are appended
    others      what _paged_attention.BATCH has names of, and what attention_forward() ignores

    Returns ((1, tokens, heads, head_dim), None).
    """
    if cache is None:
        raise unsupported("cache", f"is absent: {PAGED_NAME} is for continuous batching alone")
    said = {name: others.pop(name) for name in _paged_attention.BATCH if name in others}
    _refuse({"dropout": dropout or None, "attention_mask": attention_mask} | others)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal:
        raise unsupported("is_causal", "is False, must be True: later tokens are not there yet")
    options = {
        "softmax_scale": scaling,
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float(),
    }
    qkv = tuple(tensor[0].transpose(0, 1) for tensor in (query, key, value))
    out = _paged_attention.attend(cache, module.layer_idx, qkv, said, sliding_window, options)
    return out[None], None


def _refuse(arguments: dict[str, Any]) -> None:
    """Whatever is given and may change what a layer computes."""
    for argument, given in arguments.items():
        if given is not None and given is not False and argument not in IGNORED:
            raise unsupported(argument, "is given, must be left out")


def _mask_of_sizes(mask: KeyMask | None, batch_size: int, q_length: int, kv_length: int) -> KeyMask:
    """The mask of a layer, which must be of its sizes."""
    if mask is None:
        return KeyMask(batch_size, q_length, kv_length, is_causal=False, window=None)
    if not isinstance(mask, KeyMask):
        message = (
            f"has rank {mask.ndim} and is not of tilewright's mask function, which takes (batch, "
            "tokens): which tokens are there"
        )
        raise unsupported("attention_mask", message)
    sizes = (batch_size, 1, q_length, kv_length)
    if mask.shape != sizes:
        raise unsupported("attention_mask", f"is for {mask.shape}, must be for {sizes}")
    return mask


def _check_agreement(mask: KeyMask, is_causal: bool, sliding_window: int | None) -> None:
    """Refuses a call of a layer that says something else than its mask: who is right?"""
    if mask.is_causal != is_causal and mask.q_length > 1:
        message = f"is {is_causal} for a layer whose mask says {mask.is_causal}, must be the same"
        raise unsupported("is_causal", message)
    window = None if sliding_window is None else sliding_window - 1
    if mask.window != window and any(
        side is not None and side < mask.keys - 1 for side in (mask.window, window)
    ):
        in_mask = None if mask.window is None else mask.window + 1
        message = f"is {sliding_window} for a layer whose mask says {in_mask}, must be the same"
        raise unsupported("sliding_window", message)


def _decode(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: dict[str, Any]) -> Tensor:
    """q (batch, 1, heads, head_dim) over those keys that `mask` (batch, keys) has, as of a cache.

    A query that is padding itself sees keys nevertheless; its result is undefined.
    """
    begin = mask.int().argmax(1)
    end = begin + mask.sum(1)
    return attention_with_kvcache(q, k, v, end.int(), leftpad_k=begin.int(), **options)


def _padded_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: dict[str, Any]
) -> Tensor:
    """q (batch, q_len, heads, head_dim) over those keys that `mask` (batch, keys) has.

    The batch is taken as one packed row of sequences, by turns padding, which sees no key and gives
    0, and tokens; nothing is gathered or scattered.
    """
    batch, q_len = q.shape[:2]
    keys = mask.shape[1]
    k_begin = mask.int().argmax(1)
    k_end = k_begin + mask.sum(1)
    if options["causal"] or options["window_size"] != (-1, -1):  # then queries are the last tokens
        q_begin, q_end = ((edge - (keys - q_len)).clamp(min=0) for edge in (k_begin, k_end))
    else:
        q_begin, q_end = torch.zeros_like(k_begin), torch.full_like(k_end, q_len)

    cu_seqlens_k = _boundaries(k_begin, k_end, keys)
    holds_tokens = torch.arange(2 * batch + 1, dtype=torch.int32, device=q.device) % 2
    packed = attention(
        q.flatten(0, 1),
        k[:, :keys].flatten(0, 1),
        v[:, :keys].flatten(0, 1),
        cu_seqlens_q=_boundaries(q_begin, q_end, q_len),
        cu_seqlens_k=cu_seqlens_k,
        seqused_k=cu_seqlens_k.diff() * holds_tokens,
        **options,
    )
    return packed.unflatten(0, (batch, q_len))


def _boundaries(begin: Tensor, end: Tensor, length: int) -> Tensor:
    """(2 * batch + 2,) int32: where padding and tokens begin in a batch of rows of that length."""
    first = torch.arange(len(begin), device=begin.device) * length
    edges = torch.stack((first + begin, first + end), 1).flatten()
    last = edges.new_full((1,), len(begin) * length)
    return torch.cat((edges.new_zeros(1), edges, last)).int()
