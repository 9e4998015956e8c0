// The GPU side of a build without CUDA.
#include "cli/machine.hpp"
#include "cli/wgmma_chain_kernel.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::cli {

std::unique_ptr<Machine> open_cuda_machine(int index) {
  device_info({DeviceKind::cuda, index});  // throws: there is no such device
  return nullptr;
}

void launch_wgmma_chains(const WgmmaChain&, const WgmmaChainParams&, int, Stream) {
  device_info({DeviceKind::cuda, 0});  // throws
}

bool has_cuda() { return false; }

}  // namespace tilewright::cli
