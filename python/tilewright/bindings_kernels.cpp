// The kernel tables for the Python layer: their rows, and why a kernel cannot run a problem.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <optional>
#include <string>

#include "native_tensor.hpp"
#include "tilewright/operations.hpp"

namespace nb = nanobind;

namespace tilewright {
namespace {

std::optional<std::string> text_of(const std::optional<Reason>& reason) {
  return reason ? std::optional(reason->argument + ": " + reason->message) : std::nullopt;
}

// Why this machine has no device that the kernel runs on; nothing if it has one.
std::optional<std::string> why_not_here(const KernelInfo& kernel) {
  try {
    return text_of(can_run(kernel, device_info({kernel.device, 0})));
  } catch (const Error& error) {  // there is no such device
    return error.what();
  }
}

// A row of a table, as keyword arguments of tilewright.Kernel.
nb::dict to_dict(const KernelInfo& kernel) {
  const auto text = [](std::string_view view) { return nb::str(view.data(), view.size()); };
  nb::list architectures;
  for (const int architecture : kernel.architectures) {
    architectures.append(architecture);
  }
  nb::list dtypes;
  for (const DType dtype : kernel.dtypes) {
    dtypes.append(text(name(dtype)));
  }
  nb::dict limits;
  for (const Limit& limit : kernel.limits) {
    limits[text(limit.argument)] = text(limit.allowed);
  }
  nb::dict row;
  row["name"] = text(kernel.name);
  row["operation"] = text(kernel.operation);
  row["summary"] = text(kernel.summary);
  row["device"] = kernel.device == DeviceKind::cpu ? "cpu" : "cuda";
  row["architectures"] = nb::tuple(architectures);
  row["dtypes"] = nb::tuple(dtypes);
  row["limits"] = limits;
  row["alignment_bytes"] = kernel.alignment_bytes;
  row["doc"] = text(kernel.doc);
  row["why_not"] = nb::cast(why_not_here(kernel));
  return row;
}

template <class Op>
void add_kernels(nb::list& rows) {
  for (const Kernel<Op>& kernel : kernels<Op>()) {
    nb::dict row = to_dict(kernel.info);
    nb::list variants;
    for (const Kernel<Op>& variant : kernel.variants) {
      variants.append(to_dict(variant.info));
    }
    row["variants"] = variants;
    rows.append(row);
  }
}

template <class... Ops>
nb::list all_kernels(OperationList<Ops...>) {
  nb::list rows;
  (add_kernels<Ops>(rows), ...);
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

GemmNvfp4Problem make_gemm_nvfp4_problem(std::string_view a_dtype, std::string_view c_dtype,
                                         std::int64_t m, std::int64_t n, std::int64_t k,
                                         std::int64_t l, bool b_is_packed, bool batch_invariant) {
  return {.a_dtype = parse_dtype(a_dtype),
          .c_dtype = parse_dtype(c_dtype),
          .m = m,
          .n = n,
          .k = k,
          .l = l,
          .b_is_packed = b_is_packed,
          .batch_invariant = batch_invariant};
}

GemmBf16Problem make_gemm_bf16_problem(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.m = m, .n = n, .k = k};
}

template <class Op>
const Kernel<Op>& kernel_named(std::string_view kernel_name) {
  const Kernel<Op>* const kernel = find_kernel<Op>(kernel_name);
  if (kernel == nullptr) {
    fail("kernel", "is '" + std::string(kernel_name) + "', must be one of kernels()");
  }
  return *kernel;
}

// Why a kernel cannot run a problem on a device of its kind; nothing if it can.
template <class Op>
std::optional<std::string> why_not(std::string_view kernel_name,
                                   const typename Op::Problem& problem, int device_index) {
  const Kernel<Op>& kernel = kernel_named<Op>(kernel_name);
  try {
    return text_of(can_run(kernel, problem, device_info({kernel.info.device, device_index})));
  } catch (const Error& error) {  // there is no such device
    return error.what();
  }
}

// The variant in which a kernel runs a problem on a GPU with `multiprocessors` SMs.
template <class Op>
std::string variant_name(std::string_view kernel_name, const typename Op::Problem& problem,
                         int multiprocessors) {
  DeviceInfo device;
  device.multiprocessors = multiprocessors;
  const Kernel<Op>* const variant = variant_of(kernel_named<Op>(kernel_name), problem, device);
  if (variant == nullptr) {
    fail("problem", "is none that kernel " + std::string(kernel_name) + " takes");
  }
  return variant->info.name;
}

template <class Op>
void bind_problem(nb::module_& m) {
  m.def("why_not", &why_not<Op>, nb::arg("kernel"), nb::arg("problem"), nb::kw_only(),
        nb::arg("device_index") = 0);
  m.def("variant_of", &variant_name<Op>, nb::arg("kernel"), nb::arg("problem"), nb::kw_only(),
        nb::arg("multiprocessors"));
}

}  // namespace

void bind_kernels(nb::module_& m) {
  nb::class_<AttentionProblem>(m, "AttentionProblem")
      .def(nb::new_(&make_problem), nb::kw_only(), nb::arg("dtype"), nb::arg("batch"),
           nb::arg("q_len"), nb::arg("kv_len"), nb::arg("heads"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("v_dim"), nb::arg("causal"), nb::arg("packed"));
  nb::class_<GemmNvfp4Problem>(m, "GemmNvfp4Problem")
      .def(nb::new_(&make_gemm_nvfp4_problem), nb::kw_only(), nb::arg("a_dtype"),
           nb::arg("c_dtype"), nb::arg("m"), nb::arg("n"), nb::arg("k"), nb::arg("l"),
           nb::arg("b_is_packed"), nb::arg("batch_invariant"));
  nb::class_<GemmBf16Problem>(m, "GemmBf16Problem")
      .def(nb::new_(&make_gemm_bf16_problem), nb::kw_only(), nb::arg("m"), nb::arg("n"),
           nb::arg("k"));
  bind_problem<Attention>(m);
  bind_problem<GemmNvfp4>(m);
  bind_problem<GemmBf16>(m);
  m.def("kernels", [] { return all_kernels(Operations{}); });
}

}  // namespace tilewright
