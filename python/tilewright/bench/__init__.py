"""The race: kernels of this library beside its peers, in one interleaved run.

    python -m tilewright.bench attention --kernels k2,k4 --peers cudnn,fa3 --json race.jsonl
    python -m tilewright.bench decode --kernels all --peers all --batch 1,64 --kv-seqlen 8192
    python -m tilewright.bench fp8 --kernels flash_fp8 --peers cudnn,fa3 --check
    python -m tilewright.bench gemm --kernels nvfp4 --peers cublas,humming --m 1,16,256

A peer is one file in the folder of its operation: peers/attention/, peers/fp8/, peers/decode/ and
so on. An operation is a Case in a file of its own (attention.py, fp8.py, decode.py) and a line in
__main__.py.
"""
