"""Hugging Face Transformers on tilewright.attention().

    import tilewright.transformers
    tilewright.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tilewright")

Causal, bidirectional and cross attention, grouped key/value heads as they are, sliding windows,
soft caps and sinks; batches padded on either side. What it cannot do, it refuses by name: other
masks, dropout, position biases, attention weights as an output. Forward only.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from tilewright._attention import attention
from tilewright._errors import UnsupportedError, invalid

NAME = "tilewright"

# Arguments of attention functions that change the result and that the library has not.
REFUSED = (
    "dropout",
    "position_bias",
    "output_attentions",
    "cache",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
)


def register() -> None:
    """Makes attn_implementation="tilewright" known to Transformers."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, key_mask)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
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
    attention_mask  what key_mask() made
    sliding_window  keys that a query sees on either side, its own included
    s_aux           (heads,), sinks

    Returns ((batch, q_len, heads, head_dim), None).
    """
    others["dropout"] = dropout
    for argument in REFUSED:
        given = others.get(argument)
        if isinstance(given, Tensor) or given:
            raise _unsupported(argument, "is given, must be left out")
    options = {
        "softmax_scale": scaling,
        "causal": getattr(module, "is_causal", True) if is_causal is None else is_causal,
        "window_size": (-1, -1) if sliding_window is None else (sliding_window - 1,) * 2,
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float(),
    }
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if attention_mask is None:
        return attention(q, k, v, **options), None
    if attention_mask.ndim != 2:
        message = f"has rank {attention_mask.ndim}, must be (batch, kv_len): which tokens are there"
        raise _unsupported("attention_mask", message)
    return _padded_attention(q, k, v, attention_mask, options), None


def key_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    config: Any = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """A mask function as Transformers calls it: which keys are there, as far as that must be said.

    attention_mask  (batch, tokens so far) bool, False where padded
    allow_...       False where the mask is not only causal, or bidirectional, in a window: the
                    latter is given for bidirectional masks alone

    Returns None where all keys are there; else (batch, keys) bool, where in each row those that are
    there lie together. A static cache's slots beyond `keys` are not in use yet.
    """
    is_plain = allow_is_causal_skip or allow_is_bidirectional_skip or q_length == 1
    if use_vmap or not is_plain:
        raise _unsupported("attention_mask", "is more than causal, a sliding window and padding")
    chunk_size = getattr(config, "attention_chunk_size", None)
    if local_size is not None and local_size == chunk_size < kv_offset + kv_length:
        raise _unsupported("attention_mask", f"is in chunks of {chunk_size} keys")

    is_causal = allow_is_bidirectional_skip is None
    keys = int(q_offset) + q_length - kv_offset if is_causal else kv_length
    if attention_mask is None:
        if keys == kv_length:
            return None
        return torch.ones((batch_size, keys), dtype=torch.bool, device=device)

    mask = attention_mask[:, kv_offset : kv_offset + keys].bool()
    if mask.shape[1] != keys:
        message = f"is for {attention_mask.shape[1]} tokens, must be for {kv_offset + keys}"
        raise invalid("attention_mask", message)
    if not torch.compiler.is_compiling():  # its values are known
        if keys == kv_length and mask.all():
            return None
        begins = mask & ~torch.nn.functional.pad(mask[:, :-1], (1, 0))
        if (begins.sum(1) > 1).any():
            raise _unsupported("attention_mask", "has padding between tokens, must be at the ends")
    return mask


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
    if options["causal"] or options["window_size"] != (-1, -1):  # queries are the last tokens
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


def _unsupported(argument: str, message: str) -> UnsupportedError:
    return UnsupportedError("unsupported", argument, message)
