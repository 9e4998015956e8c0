// Special registers, which a warp gets when it begins.
#include <array>

#include "emulator/machine.hpp"

namespace tilewright::emulator {
namespace {

// The special registers of three dimensions, by the first of the three.
struct Triple {
  Special first;
  Dim3 value;
};

Dim3 quotient(const Dim3& a, const Dim3& b) { return {a.x / b.x, a.y / b.y, a.z / b.z}; }
Dim3 remainder(const Dim3& a, const Dim3& b) { return {a.x % b.x, a.y % b.y, a.z % b.z}; }

std::array<Triple, 8> triples_of(const Warp& warp, std::uint32_t thread) {
  const LaunchShape& shape = warp.grid->shape;
  const Dim3& index = warp.block->index;
  const Dim3& size = shape.block;
  const Dim3 tid = {thread % size.x, thread / size.x % size.y, thread / size.x / size.y};
  return {{{Special::tid_x, tid},
           {Special::ntid_x, size},
           {Special::ctaid_x, index},
           {Special::nctaid_x, shape.grid},
           {Special::clusterid_x, quotient(index, shape.cluster)},
           {Special::nclusterid_x, quotient(shape.grid, shape.cluster)},
           {Special::cluster_ctaid_x, remainder(index, shape.cluster)},
           {Special::cluster_nctaid_x, shape.cluster}}};
}

std::uint64_t of_lane(const Warp& warp, Special special, std::uint32_t lane) {
  for (const auto& [first, value] : triples_of(warp, warp.index * kWarpLanes + lane)) {
    switch (static_cast<int>(special) - static_cast<int>(first)) {
      case 0:
        return value.x;
      case 1:
        return value.y;
      case 2:
        return value.z;
      default:
        break;
    }
  }
  const LaunchShape& shape = warp.grid->shape;
  const LaneMask below = (LaneMask{1} << lane) - 1;
  const LaneMask own = LaneMask{1} << lane;
  switch (special) {
    case Special::laneid:
      return lane;
    case Special::lanemask_eq:
      return own;
    case Special::lanemask_lt:
      return below;
    case Special::lanemask_le:
      return below | own;
    case Special::lanemask_gt:
      return ~(below | own);
    case Special::lanemask_ge:
      return ~below;
    case Special::warpid:
      return warp.index;
    case Special::nwarpid:
      return 64;
    case Special::smid:
      return warp.block->smid;
    case Special::nsmid:
      return static_cast<std::uint64_t>(settings().multiprocessors);
    case Special::cluster_ctarank:
      return warp.block->rank;
    case Special::cluster_nctarank:
      return shape.cluster.count();
    case Special::is_explicit_cluster:
      return shape.has_cluster ? 1 : 0;
    case Special::dynamic_smem_size:
      return shape.dynamic_shared_bytes;
    case Special::total_smem_size:
      return warp.block->shared.bytes;
    case Special::dynamic_smem_base:
      return warp.kernel->dynamic_shared_offset();
    case Special::parameters:
      return reinterpret_cast<std::uintptr_t>(warp.grid->parameters.data());
    default:
      return 0;  // %gridid, and those that are read as they change
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
