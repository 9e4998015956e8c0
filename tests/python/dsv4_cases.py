"""A call of dsv4_attention() in PyTorch, and the same in plain PyTorch of float64."""

import torch

import tilewright

DIM = 512
ROW_BYTES = {"bf16": None, "e4m3_bf16": 584, "e4m3": 528, "e2m1": 288}


def cache(row_format, pages, page_size, device="cpu", seed=0):
    """A cache whose rows hold normal values."""
    generator = torch.Generator().manual_seed(seed)
    row_bytes = ROW_BYTES[row_format]
    if row_bytes is None:
        rows = torch.empty(pages, page_size, DIM, dtype=torch.bfloat16, device=device)
    else:
        page_bytes = -(-page_size * row_bytes // 576) * 576  # as FlashMLA pads them
        memory = torch.zeros(pages, page_bytes, dtype=torch.uint8, device=device)
        rows = memory.as_strided((pages, page_size, row_bytes), (page_bytes, row_bytes, 1))
    x = torch.randn(pages * page_size, DIM, generator=generator).to(device, torch.bfloat16)
    tilewright.quantize_kv_rows(x, rows, torch.arange(len(x), device=device))
    return rows


def values(rows):
    """All rows of a cache, by slot, in float64."""
    slots = torch.arange(rows.shape[0] * rows.shape[1], device=rows.device)
    return tilewright.dequantize_kv_rows(rows, slots, dtype="float32").double()


def make_q(batch, q_len, heads, device="cpu", seed=1):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, q_len, heads, DIM, generator=generator).to(device, dtype)


def ints(numbers, device="cpu"):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def attend(q, keys_of, sinks=None):
    """(out, lse, lse without the sink) in float64; keys_of(b, i) is the keys of a token."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), -torch.inf, dtype=torch.float64)
    lse_of_keys = lse.clone()
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            keys = keys_of(b, i)
            scores = q[b, i].cpu().double() @ keys.T.cpu() / DIM**0.5
            lse_of_keys[b, :, i] = scores.logsumexp(dim=1)
            if sinks is not None:
                scores = torch.cat([scores, sinks.cpu().double()[:, None]], dim=1)
            lse[b, :, i] = scores.logsumexp(dim=1)
            weights = (scores - lse[b, :, i, None]).exp()[:, : len(keys)]
            out[b, i] = weights.nan_to_num(0) @ keys.cpu()
    return out, lse, lse_of_keys


def near(actual, expected):
    """Whether a result is as near as its dtype lets it be."""
    is_half = actual.dtype == torch.bfloat16
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if is_half else {"rtol": 1e-5, "atol": 2e-5}
    return torch.allclose(actual.cpu().double(), expected, **tolerance)
