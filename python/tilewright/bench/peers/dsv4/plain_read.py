"""A plain read of as many bytes as an implementation must read of both caches: the roof."""

from tilewright.bench.peers.decode.plain_read import peers

__all__ = ["peers"]
