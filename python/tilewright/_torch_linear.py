"""A linear layer of PyTorch with an NVFP4 weight."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tilewright import _native
from tilewright._arguments import flag, size_of
from tilewright._early_reads import EarlyReads
from tilewright._errors import invalid, wrong_type
from tilewright._frameworks import refuse_gradient, refuse_tracing
from tilewright._gemm_nvfp4 import gemm_nvfp4
from tilewright._nvfp4 import prepack_nvfp4_weight, unpack_nvfp4_weight

_BLOCK = 16

# The names that checkpoints have for codes, scales and global scale, by the sense of the global
# scale: ModelOpt's, and those of compressed-tensors.
_NAMES = {
    "decode": ("weight", "weight_scale", "weight_scale_2"),
    "encode": ("weight_packed", "weight_scale", "weight_global_scale"),
}
# Scales of NVFP4 activations, which this layer does not have.
_IGNORED = ("input_scale", "input_global_scale")
# NVFP4_AWQ multiplies activations by a tensor whose name, in all quantisers, ends in this.
_REFUSED = "pre_quant_scale"


class NVFP4Linear(torch.nn.Module):
    """x times the transpose of an NVFP4 weight, plus a bias: activations bf16 or fp16.

    The weight comes from a checkpoint's tensors, by load_state_dict() or from_tensors():

        ModelOpt            weight, weight_scale, weight_scale_2
        compressed-tensors  weight_packed, weight_scale, weight_global_scale

    codes uint8 (out_features, in_features / 2), scales float8_e4m3fn (out_features, in_features /
    16), the global scale float32 of one element, or of one for each row, (out_features,) or
    (out_features, 1), all positive and finite; also `bias`, where the layer has one. An
    `input_scale` or `input_global_scale` is ignored, a `pre_quant_scale` is refused. The weight is
    packed once, on the layer's device, when it is loaded; state_dict() has it under the names, in
    the sense and with the global scale's shape in which it came. Until then it is zeros. Loading
    again, under the same names and with as many global scales, keeps the layer's memory, so that
    CUDA graphs stay true. A pickled layer has the packed weight and NVFP4_WEIGHT_LAYOUT, which must
    be the same where it is loaded.

    in_features is a multiple of 16, and on a GPU out_features is, too. Where batch_invariant, a row
    of the result does not depend on the other rows. Calls that would record gradients are refused:
    call it under torch.no_grad().

    On a GPU a GEMM may read the weight while what was queued before it is still at work. It does
    not in the first call on a stream after the weight was loaded, moved or written by PyTorch, nor
    where it was loaded under torch.inference_mode(), nor in a CUDA graph before there was a call
    outside: there should be one before a capture. Whoever writes `packed` by other means must wait
    for the device before the next call.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        batch_invariant: bool = False,
    ):
        super().__init__()
        in_features = size_of("in_features", in_features)
        out_features = size_of("out_features", out_features)
        if in_features % _BLOCK != 0:
            raise invalid("in_features", f"is {in_features}, must be a multiple of {_BLOCK}")
        self.in_features = in_features
        self.out_features = out_features
        self.batch_invariant = flag("batch_invariant", batch_invariant)
        self.global_scale_kind = "decode"
        self.global_scale_shape = ()  # in a checkpoint
        self.weight_layout = _native.nvfp4_weight_layout
        self._reads = EarlyReads()
        shape = _native.packed_nvfp4_weight_shape(out_features, in_features)
        packed = torch.zeros(*shape, dtype=torch.uint8, device=device)
        self.register_buffer("packed", packed, persistent=False)
        # They are integers, which .half() and .to(dtype) do not convert.
        global_scale = torch.ones(1, dtype=torch.float32, device=device)
        self.register_buffer("global_scale_bits", global_scale.view(torch.int32), persistent=False)
        zeros = torch.zeros(out_features, dtype=dtype, device=device) if bias else None
        self.bias = None if zeros is None else torch.nn.Parameter(zeros, requires_grad=False)

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], *, batch_invariant: bool = False
    ) -> "NVFP4Linear":
        """The layer of a checkpoint's tensors by the names above, on their device."""
        codes_name = _NAMES[_kind_of(tensors)][0]
        if codes_name not in tensors:
            raise invalid("tensors", f"has no '{codes_name}', must have a weight's codes")
        codes, bias = tensors[codes_name], tensors.get("bias")
        for name, value in ((codes_name, codes), ("bias", bias)):
            if not isinstance(value, Tensor | None):
                raise wrong_type(name, f"is {value!r}, must be a tensor")
        if codes.ndim != 2:
            raise invalid(codes_name, f"has rank {codes.ndim}, must have rank 2 (rows, columns)")
        layer = cls(
            2 * codes.shape[1],
            codes.shape[0],
            bias=bias is not None,
            device=codes.device,
            dtype=None if bias is None else bias.dtype,
            batch_invariant=batch_invariant,
        )
        layer.load_state_dict(dict(tensors))
        return layer

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), of x's dtype. Compiled models go round it."""
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise invalid("x", f"has shape {tuple(x.shape)}, must be (..., {self.in_features})")
        refuse_tracing("x", x)
        for name, tensor in (("x", x), ("bias", self.bias)):
            if tensor is not None:
                refuse_gradient(name, tensor)
        shape = (*x.shape[:-1], self.out_features)
        if x.numel() == 0:
            return x.new_empty(shape)
        launch = self._reads.next_launch(self.packed)
        out = gemm_nvfp4(
            x.reshape(-1, self.in_features).contiguous(),
            self.packed,
            global_scale_b=self.global_scale_bits.view(torch.float32),
            bias=None if self.bias is None else self.bias.to(x.dtype),
            n=self.out_features,
            dtype=x.dtype,
            global_scale_b_kind=self.global_scale_kind,
            b_is_constant=launch.is_early,
            batch_invariant=self.batch_invariant,
        )
        self._reads.launched(launch)
        return out.view(shape)

    def _apply(self, *args, **options):
        """What .to() and the like call."""
        self._reads.forget()
        return super()._apply(*args, **options)

    def __setstate__(self, state):
        layout = state.get("weight_layout")
        if layout != _native.nvfp4_weight_layout:
            message = f"is {layout}, must be {_native.nvfp4_weight_layout}: load a checkpoint again"
            raise invalid("weight_layout", message)
        super().__setstate__(state | {"_reads": EarlyReads()})

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, batch_invariant={self.batch_invariant}"
        )

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors
    ):
        """What load_state_dict() calls for a module; here the weight, and PyTorch the bias."""
        kind = _kind_of(state_dict, prefix)
        keys = [prefix + name for name in _NAMES[kind]]
        absent = [key for key in keys if key not in state_dict]
        missing += absent
        problems = [
            f"{key}: is given, must be left out: this layer does not multiply activations by it"
            for key in state_dict
            if key.startswith(prefix) and key.endswith(_REFUSED)
        ]
        if not absent:
            weight = [state_dict[key] for key in keys]
            problems += self._problems(dict(zip(keys, weight, strict=True)))
            if not problems:
                self._pack(*weight, kind)
        errors += problems
        others = {*keys, *(prefix + name for name in _IGNORED)}
        rest = {key: value for key, value in state_dict.items() if key not in others}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing, unexpected, errors
        )

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        codes, scales = unpack_nvfp4_weight(self.packed, self.out_features, self.in_features)
        global_scale = self.global_scale_bits.view(torch.float32).clone()
        global_scale = global_scale.reshape(self.global_scale_shape)
        for name, tensor in zip(
            _NAMES[self.global_scale_kind], (codes, scales, global_scale), strict=True
        ):
            destination[prefix + name] = tensor

    def _problems(self, weight: dict[str, Tensor]) -> list[str]:
        """What is wrong with codes, scales and a global scale, one sentence each."""
        others = [
            f"{key}: is {value!r}, must be a tensor"
            for key, value in weight.items()
            if not isinstance(value, Tensor)
        ]
        if others:
            return others
        rows, columns = self.out_features, self.in_features
        right = (
            (torch.uint8, {(rows, columns // 2)}),
            (torch.float8_e4m3fn, {(rows, columns // _BLOCK)}),
            (torch.float32, {(), (1,), (rows,), (rows, 1)}),
        )
        problems = [
            f"{key}: is {tensor.dtype} of shape {tuple(tensor.shape)}, must be {dtype} of shape "
            + " or ".join(map(str, sorted(shapes)))
            for (key, tensor), (dtype, shapes) in zip(weight.items(), right, strict=True)
            if tensor.dtype != dtype or tuple(tensor.shape) not in shapes
        ]
        return problems or _problems_of_global_scale(*list(weight.items())[2])

    def _pack(self, codes: Tensor, scales: Tensor, global_scale: Tensor, kind: str) -> None:
        """Packs into the layer's memory; on the tensors' device where it has none."""
        codes, scales, global_scale = (x.detach() for x in (codes, scales, global_scale))
        bits = global_scale.reshape(-1).view(torch.int32)
        if self.packed.is_meta:
            self.packed = prepack_nvfp4_weight(codes, scales)
        else:
            device = self.packed.device
            prepack_nvfp4_weight(codes.to(device), scales.to(device), out=self.packed)
        self._reads.forget()
        if self.global_scale_bits.is_meta or self.global_scale_bits.shape != bits.shape:
            self.global_scale_bits = bits.to(self.packed.device, copy=True)
        else:
            self.global_scale_bits.copy_(bits)
        self.global_scale_kind = kind
        self.global_scale_shape = tuple(global_scale.shape)


def _problems_of_global_scale(key: str, global_scale: Tensor) -> list[str]:
    """The first of its values that makes a row NaN, one sentence."""
    values = global_scale.detach().reshape(-1)
    wrong = (~(values.isfinite() & (values > 0))).nonzero()
    if len(wrong) == 0:
        return []
    row = int(wrong[0])
    where = "" if len(values) == 1 else f" in row {row}"
    return [f"{key}: has the value {float(values[row])}{where}, must be positive and finite"]


def _kind_of(tensors: Mapping[str, Tensor], prefix: str = "") -> str:
    """The sense of the global scale of a checkpoint, by its names."""
    return "encode" if prefix + "weight_packed" in tensors else "decode"
