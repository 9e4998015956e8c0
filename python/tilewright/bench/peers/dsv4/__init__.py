"""Peers of DeepSeek-V4's attention."""
