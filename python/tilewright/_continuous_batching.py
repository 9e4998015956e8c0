"""Makes Transformers' continuous batching take an attention implementation that it does not list.

It asks the names of implementations what they can do: only some are let in, and only some get block
tables. There is nothing to register for that, so the two functions that ask are replaced by ones
that know another name and leave the others to Transformers.
"""

import functools
from typing import Any

from transformers.generation.continuous_batching import initialization
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchingManager as Manager,
)

_SWITCH = Manager.switch_to_cb_friendly_attn
_CHECK_BLOCK_TABLES = initialization.ensure_decode_fast_path_is_available


def admit(name: str, paged_name: str) -> None:
    """Lets models with attn_implementation=name run by continuous batching, as `paged_name`."""

    @functools.wraps(_SWITCH)
    def switch(manager: Any, model: Any, *details: Any, **more: Any) -> None:
        if model.config._attn_implementation not in (name, paged_name):
            _SWITCH(manager, model, *details, **more)
        elif model.config._attn_implementation == name:
            manager._original_attn_impl = name  # which the model gets back when the manager stops
            model.set_attn_implementation(paged_name)

    @functools.wraps(_CHECK_BLOCK_TABLES)
    def check_block_tables(config: Any, cb_config: Any, *details: Any, **more: Any) -> None:
        if config._attn_implementation != paged_name:
            _CHECK_BLOCK_TABLES(config, cb_config, *details, **more)
        elif _has_other_than_full_attention(config):
            cb_config.max_blocks_per_request = 0  # no block tables

    Manager.switch_to_cb_friendly_attn = switch
    initialization.ensure_decode_fast_path_is_available = check_block_tables


def _has_other_than_full_attention(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is not None
    return any(kind != "full_attention" for kind in kinds)
