// tilewright._native: the C++ API for the Python layer. Tensors come as DLPack capsules (or NumPy
// arrays) and become views; all else about an argument is checked by the library itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "native_tensor.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/version.hpp"

namespace nb = nanobind;

namespace tilewright {
namespace {

// One side of a window, which is -1 in Python where there is no limit.
std::optional<std::int64_t> to_window_side(std::int64_t keys) {
  return keys == -1 ? std::nullopt : std::optional(keys);
}

// A call's tensors and options, put together once for the workspace query and the call itself.
class AttentionCall {
 public:
  // `tensors` has a Tensor for each argument that is given, under its Python name.
  AttentionCall(const nb::dict& tensors, std::optional<double> softmax_scale, bool causal,
                std::int64_t window_size_left, std::int64_t window_size_right, double softcap,
                bool batch_invariant, bool check_lengths, std::string kernel_name)
      : owners_(tensors), kernel_name_(std::move(kernel_name)) {
    tensors_ = {.q = view("q"),
                .k = view("k"),
                .v = view("v"),
                .o = view("out"),
                .lse = find("lse"),
                .sinks = find("sinks"),
                .cu_seqlens_q = find("cu_seqlens_q"),
                .cu_seqlens_k = find("cu_seqlens_k"),
                .seqused_k = find("seqused_k"),
                .row_max = find("row_max"),
                .row_sum = find("row_sum")};
    options_ = {.causal = causal,
                .window = {.left = to_window_side(window_size_left),
                           .right = to_window_side(window_size_right)},
                .softcap = static_cast<float>(softcap),
                .batch_invariant = batch_invariant,
                .check_lengths = check_lengths,
                .kernel = kernel_name_};
    if (softmax_scale) {
      options_.scale = static_cast<float>(*softmax_scale);
    }
  }
  AttentionCall(const AttentionCall&) = delete;  // options_.kernel views kernel_name_
  AttentionCall& operator=(const AttentionCall&) = delete;

  std::size_t workspace_bytes() const { return attention_workspace_bytes(tensors_, options_); }

  void run(const Tensor* workspace, std::uintptr_t stream) const {
    const nb::gil_scoped_release released;
    attention(tensors_, options_, to_workspace(workspace), reinterpret_cast<Stream>(stream));
  }

 private:
  const TensorView& view(const char* argument) const {
    return nb::cast<const Tensor&>(owners_[argument]).view();
  }

  std::optional<TensorView> find(const char* argument) const {
    return owners_.contains(argument) ? std::optional(view(argument)) : std::nullopt;
  }

  nb::dict owners_;
  std::string kernel_name_;
  AttentionTensors tensors_;
  AttentionOptions options_;
};

// Why a kernel cannot run a problem on a device of its kind; nothing where it can. Without a
// problem, the device is the only reason.
template <class Problem>
std::optional<std::string> why_not(const KernelInfo& kernel, const std::optional<Problem>& problem,
                                   int device_index) {
  try {
    const DeviceInfo& device = device_info({kernel.device, device_index});
    const auto reason = problem ? can_run(kernel, *problem, device) : can_run(kernel, device);
    return reason ? std::optional(reason->argument + ": " + reason->message) : std::nullopt;
  } catch (const Error& error) {  // there is no such device
    return error.what();
  }
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
  nb::list out_dtypes;
  for (const DType dtype : kernel.out_dtypes) {
    out_dtypes.append(text(name(dtype)));
  }
  row["out_dtypes"] = nb::tuple(out_dtypes);
  row["n_multiple"] = kernel.n_multiple;
  row["k_multiple"] = kernel.k_multiple;
  nb::list weight_forms;
  for (const WeightForm form : kernel.weight_forms) {
    weight_forms.append(text(name(form)));
  }
  row["weight_forms"] = nb::tuple(weight_forms);
  row["alignment_bytes"] = kernel.alignment_bytes;
  row["doc"] = text(kernel.doc);
  row["why_not"] = nb::cast(why_not<AttentionProblem>(kernel, std::nullopt, 0));
  return row;
}

nb::list to_list(std::span<const KernelInfo> table) {
  nb::list rows;
  for (const KernelInfo& kernel : table) {
    rows.append(to_dict(kernel));
  }
  return rows;
}

DType parse_dtype(std::string_view text) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16, DType::e2m1x2}) {
    if (text == name(dtype)) {
      return dtype;
    }
  }
  fail("dtype", "is '" + std::string(text) + "', must be fp32, fp16, bf16 or e2m1x2");
}

AttentionProblem make_problem(std::string_view dtype, std::int64_t batch, std::int64_t q_len,
                              std::int64_t kv_len, std::int64_t heads, std::int64_t kv_heads,
                              std::int64_t head_dim, std::int64_t v_dim, bool causal, bool packed) {
  return {.dtype = parse_dtype(dtype),
          .batch = batch,
          .q_len = q_len,
          .kv_len = kv_len,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .value_dim = v_dim,
          .causal = causal,
          .packed = packed,
          .packed_queries = packed,
          .packed_keys = packed};
}

GemmProblem make_gemm_problem(std::string_view a_dtype, std::string_view c_dtype, std::int64_t m,
                              std::int64_t n, std::int64_t k, std::int64_t l, bool b_is_packed,
                              bool batch_invariant) {
  return {.a_dtype = parse_dtype(a_dtype),
          .c_dtype = parse_dtype(c_dtype),
          .m = m,
          .n = n,
          .k = k,
          .l = l,
          .b_is_packed = b_is_packed,
          .batch_invariant = batch_invariant};
}

const KernelInfo& kernel_named(std::string_view operation, std::string_view kernel_name) {
  const KernelInfo* kernel = find_kernel(operation, kernel_name);
  if (kernel == nullptr) {
    fail("kernel", "is '" + std::string(kernel_name) + "', must be one of kernels()");
  }
  return *kernel;
}

std::optional<std::string> py_why_not(std::string_view kernel_name,
                                      const std::optional<AttentionProblem>& problem,
                                      int device_index) {
  return why_not(kernel_named("attention", kernel_name), problem, device_index);
}

std::optional<std::string> py_gemm_why_not(std::string_view operation, std::string_view kernel_name,
                                           const GemmProblem& problem, int device_index) {
  return why_not(kernel_named(operation, kernel_name), std::optional(problem), device_index);
}

std::string_view py_flash_row_of(const AttentionProblem& problem, int multiprocessors) {
  DeviceInfo device;
  device.multiprocessors = multiprocessors;
  const KernelInfo* const row = flash_row_of(problem, device);
  if (row == nullptr) {
    fail("problem", "has head dims or a dtype that flash does not take");
  }
  return row->name;
}

std::string_view py_nvfp4_row_of(const GemmProblem& problem, int multiprocessors) {
  DeviceInfo device;
  device.multiprocessors = multiprocessors;
  return nvfp4_row_of(problem, device).name;
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
      .def(nb::init<const std::string&, nb::handle, std::optional<std::string>, const std::string&,
                    bool>(),
           nb::arg("argument"), nb::arg("source"), nb::arg("held").none(), nb::arg("takes"),
           nb::arg("is_output"));

  nb::class_<AttentionCall>(m, "AttentionCall")
      .def(nb::init<const nb::dict&, std::optional<double>, bool, std::int64_t, std::int64_t,
                    double, bool, bool, std::string>(),
           nb::arg("tensors"), nb::kw_only(), nb::arg("softmax_scale").none(), nb::arg("causal"),
           nb::arg("window_size_left"), nb::arg("window_size_right"), nb::arg("softcap"),
           nb::arg("batch_invariant"), nb::arg("check_lengths"), nb::arg("kernel_name"))
      .def("workspace_bytes", &AttentionCall::workspace_bytes)
      .def("run", &AttentionCall::run, nb::arg("workspace").none(), nb::arg("stream"));

  bind_nvfp4(m);
  bind_gemm(m);

  nb::class_<AttentionProblem>(m, "AttentionProblem")
      .def(nb::new_(&make_problem), nb::kw_only(), nb::arg("dtype"), nb::arg("batch"),
           nb::arg("q_len"), nb::arg("kv_len"), nb::arg("heads"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("v_dim"), nb::arg("causal"), nb::arg("packed"));

  nb::class_<GemmProblem>(m, "GemmProblem")
      .def(nb::new_(&make_gemm_problem), nb::kw_only(), nb::arg("a_dtype"), nb::arg("c_dtype"),
           nb::arg("m"), nb::arg("n"), nb::arg("k"), nb::arg("l"), nb::arg("b_is_packed"),
           nb::arg("batch_invariant"));

  m.def("kernels", [] { return to_list(kernels()); });
  m.def("flash_rows", [] { return to_list(flash_rows()); });
  m.def("nvfp4_rows", [] { return to_list(nvfp4_rows()); });
  m.def("flash_row_of", &py_flash_row_of, nb::arg("problem"), nb::kw_only(),
        nb::arg("multiprocessors"));
  m.def("nvfp4_row_of", &py_nvfp4_row_of, nb::arg("problem"), nb::kw_only(),
        nb::arg("multiprocessors"));
  m.def("why_not", &py_why_not, nb::arg("kernel"), nb::arg("problem").none() = nb::none(),
        nb::kw_only(), nb::arg("device_index") = 0);
  m.def("gemm_why_not", &py_gemm_why_not, nb::arg("operation"), nb::arg("kernel"),
        nb::arg("problem"), nb::kw_only(), nb::arg("device_index") = 0);

  m.attr("version") = nb::str(kVersion.data(), kVersion.size());
  m.attr("commit") = nb::str(kCommit.data(), kCommit.size());
}
