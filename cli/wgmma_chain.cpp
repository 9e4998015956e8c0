#include "cli/wgmma_chain.hpp"

#include <algorithm>
#include <cstdint>

#include "cli/wgmma_chain_kernel.hpp"

namespace tilewright::cli {
namespace {

// A machine's copy of values of the host.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Machine& machine, std::size_t count)
      : machine_(machine), count_(count), memory_(machine.allocate(count * sizeof(T))) {}
  DeviceArray(Machine& machine, const std::vector<T>& values)
      : DeviceArray(machine, values.size()) {
    machine_.upload(memory_.get(), values.data(), count_ * sizeof(T));
  }

  T* data() { return reinterpret_cast<T*>(memory_.get()); }

  std::vector<T> download() {
    std::vector<T> values(count_);
    machine_.download(values.data(), memory_.get(), count_ * sizeof(T));
    return values;
  }

 private:
  Machine& machine_;
  std::size_t count_;
  Memory memory_;
};

}  // namespace

std::vector<float> add_up_on(Machine& machine, const WgmmaChain& chain,
                             const std::vector<Summands>& sums) {
  std::vector<float> x, y, start;
  for (const Summands& sum : sums) {
    x.insert(x.end(), sum.x.begin(), sum.x.end());
    y.insert(y.end(), sum.y.begin(), sum.y.end());
    start.push_back(sum.start);
  }
  DeviceArray<float> x_there(machine, x), y_there(machine, y), start_there(machine, start);
  DeviceArray<float> results(machine, sums.size());
  DeviceArray<std::int32_t> differs(machine, sums.size());
  const WgmmaChainParams params{.x = x_there.data(),
                                .y = y_there.data(),
                                .start = start_there.data(),
                                .sum = results.data(),
                                .differs = differs.data(),
                                .instructions = chain.instructions};
  machine.run([&](Stream stream) {
    launch_wgmma_chains(chain, params, static_cast<int>(sums.size()), stream);
  });
  const auto different = std::ranges::count(differs.download(), 1);
  if (different > 0) {
    throw Error(ErrorCode::cuda, "wgmma",
                std::to_string(different) + " of " + std::to_string(sums.size()) +
                    " sums are not the same in all elements of the accumulator");
  }
  return results.download();
}

}  // namespace tilewright::cli
