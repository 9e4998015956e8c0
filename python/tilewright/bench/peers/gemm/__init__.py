"""Peers of GEMMs with NVFP4 weights."""
