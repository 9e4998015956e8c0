"""Makes Transformers' continuous batching take an attention implementation that it does not list.

It asks the names of implementations what they can do: only some are let in, and only some get block
tables. There is nothing to register for that, so the two functions that ask are replaced by ones
that know another name and leave the others to Transformers.
"""

import functools
from typing import Any

from transformers.generation.continuous_batching import continuous_api, initialization

Manager = continuous_api.ContinuousBatchingManager


def admit(name: str, paged_name: str) -> None:
    """Lets models with attn_implementation=name run by continuous batching, as `paged_name`."""
    if hasattr(Manager.switch_to_cb_friendly_attn, "admitted"):
        return
    switch = Manager.switch_to_cb_friendly_attn
    check_block_tables = initialization.ensure_decode_fast_path_is_available

    @functools.wraps(switch)
    def switch_or_keep(self: Any, model: Any, *details: Any, **more: Any) -> None:
        if model.config._attn_implementation not in (name, paged_name):
            switch(self, model, *details, **more)
        elif model.config._attn_implementation == name:
            self._original_attn_impl = name  # which it is given back when the manager stops
            model.set_attn_implementation(paged_name)

    @functools.wraps(check_block_tables)
    def check_unless_paged(config: Any, cb_config: Any, *details: Any, **more: Any) -> None:
        if config._attn_implementation != paged_name:
            check_block_tables(config, cb_config, *details, **more)
        elif _has_other_than_full_attention(config):
            cb_config.max_blocks_per_request = 0  # no block tables

    switch_or_keep.admitted = (name, paged_name)
    Manager.switch_to_cb_friendly_attn = switch_or_keep
    initialization.ensure_decode_fast_path_is_available = check_unless_paged


def _has_other_than_full_attention(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is not None
    return any(kind != "full_attention" for kind in kinds)
