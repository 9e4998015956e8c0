"""Peers of products with NVFP4 weights."""
