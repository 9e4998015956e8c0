// The kernel tables of all operations for the Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "kernel_queries.hpp"
#include "tilewright/operations.hpp"

namespace nb = nanobind;

namespace tilewright {
namespace {

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

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("kernels", [] { return all_kernels(Operations{}); });
}

}  // namespace tilewright
