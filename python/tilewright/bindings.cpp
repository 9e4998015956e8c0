// tilewright._native: the C++ API for the Python layer. Tensors come as DLPack capsules (or NumPy
// arrays) and become views; all else about an argument is checked by the library itself.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/version.hpp"

namespace nb = nanobind;

namespace tilewright {
namespace {

[[noreturn]] void fail(const std::string& argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

std::string dtype_text(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const std::string bits = std::to_string(dtype.bits) + (dtype.lanes == 1 ? "" : " in vectors");
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int:
      return "int" + bits;
    case Code::UInt:
      return "uint" + bits;
    case Code::Float:
      return "float" + bits;
    case Code::Complex:
      return "complex" + bits;
    case Code::Bool:
      return "bool";
    default:
      return "DLPack type " + std::to_string(dtype.code) + " of " + bits + " bits";
  }
}

DType to_dtype(const std::string& argument, nb::dlpack::dtype dtype, bool uint16_is_bf16) {
  if (uint16_is_bf16 && dtype == nb::dtype<std::uint16_t>()) {
    return DType::bf16;
  }
  if (dtype == nb::dtype<float>()) {
    return DType::fp32;
  }
  if (dtype.lanes == 1 && dtype.bits == 16) {
    if (dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) {
      return DType::fp16;
    }
    if (dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat)) {
      return DType::bf16;
    }
  }
  fail(argument, "has dtype " + dtype_text(dtype) + ", must be fp32, fp16 or bf16");
}

Device to_device(const std::string& argument, int type, int index) {
  if (type == nb::device::cpu::value || type == nb::device::cuda_host::value) {
    return {DeviceKind::cpu, 0};
  }
  if (type == nb::device::cuda::value || type == nb::device::cuda_managed::value) {
    return {DeviceKind::cuda, index};
  }
  fail(argument,
       "is on a device of DLPack type " + std::to_string(type) + ", must be on the cpu or on cuda");
}

// A caller's tensor, kept alive for as long as this object is.
class Tensor {
 public:
  // `source` is a DLPack capsule or a NumPy array. uint16_is_bf16: its 16 bits are bf16 (NumPy's
  // DLPack export has no bf16). Only an output must be writable.
  Tensor(const std::string& argument, nb::handle source, bool uint16_is_bf16, bool is_output) {
    nb::ndarray<> writable;
    if (is_output && nb::try_cast(source, writable, /*convert=*/false)) {
      array_ = nb::ndarray<nb::ro>(writable);
    } else if (!nb::try_cast(source, array_, /*convert=*/false)) {
      fail(argument, "has a dtype or strides that DLPack cannot express");
    } else if (is_output) {
      fail(argument, "is read-only, must be writable");
    }
    if (array_.ndim() > kMaxRank) {
      fail(argument, "has rank " + std::to_string(array_.ndim()) + ", must have at most rank " +
                         std::to_string(kMaxRank));
    }
    view_.data = const_cast<void*>(array_.data());
    view_.dtype = to_dtype(argument, array_.dtype(), uint16_is_bf16);
    view_.device = to_device(argument, array_.device_type(), array_.device_id());
    view_.rank = static_cast<int>(array_.ndim());
    std::copy_n(array_.shape_ptr(), array_.ndim(), view_.shape.begin());
    std::copy_n(array_.stride_ptr(), array_.ndim(), view_.stride.begin());
  }

  const TensorView& view() const { return view_; }

 private:
  nb::ndarray<nb::ro> array_;
  TensorView view_;
};

AttentionTensors to_tensors(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                            const Tensor* lse, const Tensor* sinks) {
  AttentionTensors tensors{.q = q.view(), .k = k.view(), .v = v.view(), .o = out.view()};
  if (lse != nullptr) {
    tensors.lse = lse->view();
  }
  if (sinks != nullptr) {
    tensors.sinks = sinks->view();
  }
  return tensors;
}

// The workspace is a dense tensor of rank 1.
Workspace to_workspace(const Tensor* tensor) {
  if (tensor == nullptr) {
    return {};
  }
  const TensorView& view = tensor->view();
  return {.data = view.data,
          .bytes = static_cast<std::size_t>(view.shape[0]) * size_bytes(view.dtype)};
}

// Both sides of the window, absent where there is no limit.
using WindowSize = std::pair<std::optional<std::int64_t>, std::optional<std::int64_t>>;

AttentionOptions to_options(bool causal, const WindowSize& window, std::optional<double> scale,
                            double softcap, std::string_view kernel) {
  AttentionOptions options{.causal = causal,
                           .window = {.left = window.first, .right = window.second},
                           .softcap = static_cast<float>(softcap),
                           .kernel = kernel};
  if (scale) {
    options.scale = static_cast<float>(*scale);
  }
  return options;
}

std::size_t py_attention_workspace_bytes(const Tensor& q, const Tensor& k, const Tensor& v,
                                         const Tensor& out, const Tensor* lse, const Tensor* sinks,
                                         bool causal, const WindowSize& window,
                                         std::optional<double> scale, double softcap,
                                         std::string_view kernel) {
  return attention_workspace_bytes(to_tensors(q, k, v, out, lse, sinks),
                                   to_options(causal, window, scale, softcap, kernel));
}

void py_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                  const Tensor* lse, const Tensor* sinks, bool causal, const WindowSize& window,
                  std::optional<double> scale, double softcap, std::string_view kernel,
                  const Tensor* workspace, std::uintptr_t stream) {
  const AttentionTensors tensors = to_tensors(q, k, v, out, lse, sinks);
  const nb::gil_scoped_release released;
  attention(tensors, to_options(causal, window, scale, softcap, kernel), to_workspace(workspace),
            reinterpret_cast<Stream>(stream));
}

// A row of the kernel table, as keyword arguments of tilewright.Kernel.
nb::dict to_dict(const KernelInfo& kernel) {
  const auto text = [](std::string_view view) { return nb::str(view.data(), view.size()); };
  nb::list dtypes;
  for (const DType dtype : kernel.dtypes) {
    dtypes.append(text(name(dtype)));
  }
  nb::list head_dims;
  for (const HeadDims dims : kernel.head_dims) {
    head_dims.append(nb::make_tuple(dims.qk, dims.v));
  }
  nb::dict row;
  row["name"] = text(kernel.name);
  row["operation"] = text(kernel.operation);
  row["summary"] = text(kernel.summary);
  row["device"] = kernel.device == DeviceKind::cpu ? "cpu" : "cuda";
  row["compute_capability"] = kernel.compute_capability;
  row["dtypes"] = nb::tuple(dtypes);
  row["head_dims"] = nb::tuple(head_dims);
  nb::list features;
  for (const Feature feature : kernel.features) {
    features.append(text(name(feature)));
  }
  row["features"] = nb::tuple(features);
  row["alignment_bytes"] = kernel.alignment_bytes;
  row["doc"] = text(kernel.doc);
  return row;
}

nb::list py_kernels() {
  nb::list rows;
  for (const KernelInfo& kernel : kernels()) {
    rows.append(to_dict(kernel));
  }
  return rows;
}

DType parse_dtype(std::string_view text) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    if (text == name(dtype)) {
      return dtype;
    }
  }
  fail("dtype", "is '" + std::string(text) + "', must be fp32, fp16 or bf16");
}

// Why a kernel cannot run a problem on a device of its kind; nothing where it can. Absent sizes are
// the kernel's own favourites, which leaves the device as the only reason.
std::optional<std::string> py_why_not(std::string_view kernel_name, int device_index,
                                      std::optional<std::string_view> dtype, std::int64_t batch,
                                      std::int64_t q_len, std::int64_t kv_len, std::int64_t heads,
                                      std::int64_t kv_heads, std::optional<std::int64_t> head_dim,
                                      bool causal) {
  const KernelInfo* kernel = find_kernel(kernel_name);
  if (kernel == nullptr) {
    fail("kernel", "is '" + std::string(kernel_name) + "', must be one of kernels()");
  }
  AttentionProblem problem{.dtype = kernel->dtypes.front(),
                           .batch = batch,
                           .q_len = q_len,
                           .kv_len = kv_len,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .causal = causal};
  if (head_dim) {
    problem.head_dim = *head_dim;
  } else if (!kernel->head_dims.empty()) {
    problem.head_dim = kernel->head_dims.front().qk;
    problem.value_dim = kernel->head_dims.front().v;
  }
  if (dtype) {
    problem.dtype = parse_dtype(*dtype);
  }
  try {
    const auto reason = can_run(*kernel, problem, device_info({kernel->device, device_index}));
    return reason ? std::optional(reason->argument + ": " + reason->message) : std::nullopt;
  } catch (const Error& error) {  // there is no such device
    return error.what();
  }
}

// Raises tilewright::Error as the Python class of its code.
void translate_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const std::string_view code = name(error.code());
    const std::string message = std::string(error.what()).substr(error.argument().size() + 2);
    const nb::object exception =
        nb::module_::import_("tilewright._errors").attr("make")(code, error.argument(), message);
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  }
}

}  // namespace
}  // namespace tilewright

NB_MODULE(_native, m) {
  using namespace tilewright;
  nb::register_exception_translator(translate_error);

  nb::class_<Tensor>(m, "Tensor")
      .def(nb::init<const std::string&, nb::handle, bool, bool>(), nb::arg("argument"),
           nb::arg("source"), nb::arg("uint16_is_bf16"), nb::arg("is_output"));

  m.def("attention_workspace_bytes", &py_attention_workspace_bytes, nb::arg("q"), nb::arg("k"),
        nb::arg("v"), nb::arg("out"), nb::arg("lse").none(), nb::arg("sinks").none(),
        nb::arg("causal"), nb::arg("window"), nb::arg("scale").none(), nb::arg("softcap"),
        nb::arg("kernel"));
  m.def("attention", &py_attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
        nb::arg("lse").none(), nb::arg("sinks").none(), nb::arg("causal"), nb::arg("window"),
        nb::arg("scale").none(), nb::arg("softcap"), nb::arg("kernel"), nb::arg("workspace").none(),
        nb::arg("stream"));
  m.def("kernels", &py_kernels);
  m.def("why_not", &py_why_not, nb::arg("kernel"), nb::kw_only(), nb::arg("device_index") = 0,
        nb::arg("dtype").none() = nb::none(), nb::arg("batch") = 1, nb::arg("q_len") = 1,
        nb::arg("kv_len") = 1, nb::arg("heads") = 1, nb::arg("kv_heads") = 1,
        nb::arg("head_dim").none() = nb::none(), nb::arg("causal") = false);

  m.attr("version") = nb::str(kVersion.data(), kVersion.size());
  m.attr("commit") = nb::str(kCommit.data(), kCommit.size());
}
