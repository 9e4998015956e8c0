"""Peers of attention over KV caches."""
