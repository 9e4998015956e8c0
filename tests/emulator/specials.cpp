// Special registers, which a warp gets when it begins.
#include "emulator/machine.hpp"

namespace tilewright::emulator {
namespace {

std::uint64_t of_launch(const Warp& warp, Special special) {
  const LaunchShape& shape = warp.grid->shape;
  const Block& block = *warp.block;
  const std::uint32_t static_end = kReservedShared_bytes + warp.kernel->static_shared_bytes;
  const std::uint32_t alignment = warp.kernel->dynamic_shared_alignment;
  switch (special) {
    case Special::ntid_x:
      return shape.block.x;
    case Special::ntid_y:
      return shape.block.y;
    case Special::ntid_z:
      return shape.block.z;
    case Special::ctaid_x:
      return block.index.x;
    case Special::ctaid_y:
      return block.index.y;
    case Special::ctaid_z:
      return block.index.z;
    case Special::nctaid_x:
      return shape.grid.x;
    case Special::nctaid_y:
      return shape.grid.y;
    case Special::nctaid_z:
      return shape.grid.z;
    case Special::warpid:
      return warp.index;
    case Special::nwarpid:
      return 64;
    case Special::nsmid:
      return static_cast<std::uint64_t>(settings().multiprocessors);
    case Special::clusterid_x:
      return block.index.x / shape.cluster.x;
    case Special::clusterid_y:
      return block.index.y / shape.cluster.y;
    case Special::clusterid_z:
      return block.index.z / shape.cluster.z;
    case Special::nclusterid_x:
      return shape.grid.x / shape.cluster.x;
    case Special::nclusterid_y:
      return shape.grid.y / shape.cluster.y;
    case Special::nclusterid_z:
      return shape.grid.z / shape.cluster.z;
    case Special::cluster_ctaid_x:
      return block.index.x % shape.cluster.x;
    case Special::cluster_ctaid_y:
      return block.index.y % shape.cluster.y;
    case Special::cluster_ctaid_z:
      return block.index.z % shape.cluster.z;
    case Special::cluster_nctaid_x:
      return shape.cluster.x;
    case Special::cluster_nctaid_y:
      return shape.cluster.y;
    case Special::cluster_nctaid_z:
      return shape.cluster.z;
    case Special::cluster_ctarank:
      return block.rank;
    case Special::cluster_nctarank:
      return shape.cluster.count();
    case Special::is_explicit_cluster:
      return shape.has_cluster ? 1 : 0;
    case Special::dynamic_smem_size:
      return shape.dynamic_shared_bytes;
    case Special::total_smem_size:
      return block.shared.bytes;
    case Special::dynamic_smem_base:
      return (static_end + alignment - 1) / alignment * alignment;
    case Special::parameters:
      return reinterpret_cast<std::uintptr_t>(warp.grid->parameters.data());
    default:
      return 0;
  }
}

std::uint64_t of_lane(const Warp& warp, Special special, std::uint32_t lane) {
  const Dim3& size = warp.grid->shape.block;
  const std::uint32_t thread = warp.index * kWarpLanes + lane;
  switch (special) {
    case Special::tid_x:
      return thread % size.x;
    case Special::tid_y:
      return thread / size.x % size.y;
    case Special::tid_z:
      return thread / size.x / size.y;
    case Special::laneid:
      return lane;
    case Special::lanemask_eq:
      return 1u << lane;
    case Special::lanemask_lt:
      return (1u << lane) - 1;
    case Special::lanemask_le:
      return (2u << lane) - 1;
    case Special::lanemask_gt:
      return ~((2u << lane) - 1);
    case Special::lanemask_ge:
      return ~((1u << lane) - 1);
    default:
      return of_launch(warp, special);
  }
}

}  // namespace

void Grid::fill_specials(Warp& warp) {
  for (const auto& [special, width, row] : kernel->specials) {
    for (std::uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      const std::uint64_t value = of_lane(warp, special, lane);
      if (width == Width::w64) {
        warp.row<std::uint64_t>(row)[lane] = value;
      } else {
        warp.row<std::uint32_t>(row)[lane] = static_cast<std::uint32_t>(value);
      }
    }
  }
}

}  // namespace tilewright::emulator
