"""Attention's peers."""
