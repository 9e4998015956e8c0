"""Masks between Transformers' mask functions, which make them, and its attention functions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from tilewright._errors import UnsupportedError, invalid


class NoTensorError(UnsupportedError, AttributeError):
    """A model's own code takes a KeyMask for a tensor."""


@dataclass(eq=False)
class KeyMask:
    """Which keys the queries of a layer see, as far as a mask function is told, where not all.

    is_causal   query i sees keys up to i + keys - q_length
    window      how many keys beside its own a query sees on either side; None: all
    there       (batch, keys) bool, where in each row those that are there lie together; None where
                all kv_length are there. A static cache's slots beyond `keys` are not in use yet

    To Transformers it is a mask of rank 4 that is ready for use, and no tensor.
    """

    batch_size: int
    q_length: int
    kv_length: int
    is_causal: bool
    window: int | None
    there: Tensor | None = None

    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.batch_size, 1, self.q_length, self.kv_length)

    @property
    def keys(self) -> int:
        return self.kv_length if self.there is None else self.there.shape[1]

    def to(self, *args: Any, **options: Any) -> "KeyMask":
        if self.there is None:
            return self
        return replace(self, there=self.there.to(*args, **options).bool())

    def contiguous(self) -> "KeyMask":
        return self

    @classmethod
    def __torch_function__(cls, function: Any, *details: Any) -> Any:
        raise _no_tensor(f"{function.__name__}()")

    def __getitem__(self, index: Any) -> Any:
        raise _no_tensor("a part")

    def __getattr__(self, name: str) -> Any:
        raise _no_tensor(name)


def key_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | KeyMask | None = None,
    local_size: int | None = None,
    config: Any = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> KeyMask | None:
    """A mask function as Transformers calls it. None where every query sees every key.

    mask_function   what the mask is beside padding, of indices
    attention_mask  (batch, tokens so far) bool, False where padded; or what this function has made
                    of that, where generate() calls it in advance
    local_size      of a causal window, with the query's own key; of a bidirectional one, on either
                    side, without it; or of a chunk
    allow_...       False where a window is not all that the mask has; the latter is given for
                    bidirectional masks alone
    """
    is_causal = allow_is_bidirectional_skip is None
    whole = causal_mask_function if is_causal else bidirectional_mask_function
    has_window = mask_function is not whole
    is_only_that = allow_is_causal_skip or allow_is_bidirectional_skip or q_length == 1
    if use_vmap or (has_window and (local_size is None or not is_only_that)):
        raise unsupported("attention_mask", "is more than causal, a sliding window and padding")
    window = local_size if has_window else None
    if is_causal and has_window:
        window = _causal_window(local_size, kv_offset + kv_length, config)
    mask = KeyMask(batch_size, q_length, kv_length, is_causal, window)
    if isinstance(attention_mask, KeyMask):
        return _made_in_advance(attention_mask, mask)

    keys = kv_length
    if is_causal or has_window:
        keys = int(q_offset) + q_length - kv_offset
    if not is_causal and keys != kv_length:
        message = "is a window on both sides of queries that are not the last tokens"
        raise unsupported("attention_mask", message)
    if attention_mask is not None:
        mask.there = _tokens_there(attention_mask, kv_offset, keys)
    if mask.there is None and keys != kv_length:
        mask.there = torch.ones((batch_size, keys), dtype=torch.bool, device=device)
    return mask if is_causal or has_window or mask.there is not None else None


def values_are_known() -> bool:
    """Whether Python may look at what tensors hold."""
    return not torch.compiler.is_compiling() and not torch.jit.is_tracing()


def has_holes(there: Tensor) -> Tensor:
    """(batch) bool: where tokens lie on both sides of padding."""
    begins = there & ~torch.nn.functional.pad(there[:, :-1], (1, 0))
    return begins.sum(1) > 1


def unsupported(argument: str, message: str) -> UnsupportedError:
    return UnsupportedError("unsupported", argument, message)


def _no_tensor(wanted: str) -> NoTensorError:
    message = f"is asked for {wanted} by the model's own code, is known to attention functions only"
    return NoTensorError("unsupported", "attention_mask", message)


def _causal_window(local_size: int, keys: int, config: Any) -> int | None:
    """Of a window that has the query's own key, or of a chunk, which must be the first."""
    if local_size != getattr(config, "attention_chunk_size", None):
        return local_size - 1
    if local_size < keys:
        raise unsupported("attention_mask", f"is in chunks of {local_size} keys")
    return None


def _tokens_there(attention_mask: Tensor, first: int, keys: int) -> Tensor | None:
    """(batch, keys) bool; None where Python may look and all are there."""
    there = attention_mask[:, first : first + keys].bool()
    if there.shape[1] != keys:
        message = f"is for {attention_mask.shape[1]} tokens, must be for {first + keys}"
        raise invalid("attention_mask", message)
    if values_are_known():
        if there.all():
            return None
        if has_holes(there).any():
            raise unsupported("attention_mask", "has padding between tokens, must be at the ends")
    return there


def _made_in_advance(made: KeyMask, wanted: KeyMask) -> KeyMask:
    for name in ("q_length", "kv_length", "is_causal", "window"):
        theirs, ours = getattr(made, name), getattr(wanted, name)
        if theirs != ours:
            raise invalid("attention_mask", f"was made for {name} {theirs}, must be for {ours}")
    return made
