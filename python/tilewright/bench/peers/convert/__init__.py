"""Peers of operations that read and write each byte once."""
