"""Peers of attention on FP8."""
