// The kernels of all operations together.
#include "tilewright/registry.hpp"

#include <vector>

#include "tilewright/operations.hpp"

namespace tilewright {
namespace {

template <class... Ops>
std::vector<const KernelInfo*>* all_kernels(OperationList<Ops...>) {
  auto* const all = new std::vector<const KernelInfo*>;
  const auto add = [&](const auto& rows) {
    for (const auto& kernel : rows) {
      all->push_back(&kernel.info);
    }
  };
  (add(kernels<Ops>()), ...);
  return all;
}

}  // namespace

std::span<const KernelInfo* const> kernels() {
  static const auto& all = *all_kernels(Operations{});  // never destroyed, as the tables are not
  return all;
}

}  // namespace tilewright
