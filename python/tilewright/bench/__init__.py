"""The race: kernels of this library beside its peers, in one interleaved run.

    python -m tilewright.bench attention --kernels k2,k4 --peers cudnn,fa3 --json race.jsonl

A peer is one file in peers/; an operation is a Case in a file of its own (attention.py) and a line
in __main__.py.
"""
