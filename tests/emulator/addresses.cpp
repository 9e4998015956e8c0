// What addresses mean, and whether an access is allowed.
#include <sstream>

#include "emulator/machine.hpp"

namespace tilewright::emulator {
namespace {

[[noreturn]] void refuse(const char* space, std::uint64_t address, std::uint32_t bytes,
                         const std::string& why) {
  std::ostringstream out;
  out << "access of " << bytes << " bytes at " << space << " address 0x" << std::hex << address
      << ": " << why;
  throw EmulationError(out.str());
}

void check_alignment(const char* space, std::uint64_t address, std::uint32_t bytes,
                     std::uint32_t alignment) {
  if (address % alignment != 0) {
    refuse(space, address, bytes, "not a multiple of " + std::to_string(alignment));
  }
}

std::byte* resolve_local(Warp& warp, int lane, std::uint32_t offset, std::uint32_t bytes,
                         std::uint32_t alignment) {
  check_alignment("local", offset, bytes, alignment);
  const std::uint32_t size = warp.kernel->local_bytes;
  if (bytes > size || offset > size - bytes) {
    refuse("local", offset, bytes, "outside the thread's " + std::to_string(size) + " bytes");
  }
  const std::size_t thread = warp.index * kWarpLanes + static_cast<std::uint32_t>(lane);
  return warp.block->local.data() + thread * size + offset;
}

}  // namespace

void Block::written(const Warp& warp, std::uint32_t offset, std::uint32_t bytes) {
  const auto mark = static_cast<std::uint8_t>(warp.index + 1);
  for (std::uint32_t at = offset / kGranule_bytes; at <= (offset + bytes - 1) / kGranule_bytes;
       ++at) {
    unfenced[at] = mark;
  }
}

SharedMemory Block::for_async_reads() const {
  SharedMemory result = shared;
  result.unfenced = settings().check_proxies ? unfenced.data() : nullptr;
  return result;
}

SharedPlace shared_place(Warp& warp, std::uint32_t address) {
  const std::uint32_t rank = address >> kRankShift;
  if (rank == 0) {
    return {warp.block, address};
  }
  auto& blocks = warp.block->cluster->blocks;
  if (rank > blocks.size()) {
    refuse("shared::cluster", address, 0, "the cluster has no such block");
  }
  Block* const block = blocks[rank - 1].get();
  if (block->done()) {
    refuse("shared::cluster", address, 0,
           "block " + std::to_string(rank - 1) + " of the cluster has ended");
  }
  return {block, address & kOffsetMask};
}

std::byte* resolve_shared(Warp& warp, std::uint32_t address, std::uint32_t bytes,
                          std::uint32_t alignment) {
  const auto [block, offset] = shared_place(warp, address);
  check_alignment("shared", offset, bytes, alignment);
  const SharedMemory& shared = block->shared;
  if (offset < kReservedShared_bytes || bytes > shared.bytes || offset > shared.bytes - bytes) {
    refuse("shared", address, bytes,
           "outside the block's " + std::to_string(kReservedShared_bytes) + " to " +
               std::to_string(shared.bytes));
  }
  return shared.base + offset;
}

std::byte* resolve_global(std::uint64_t address, std::uint32_t bytes, std::uint32_t alignment) {
  check_alignment("global", address, bytes, alignment);
  auto* const place = reinterpret_cast<std::byte*>(address);
  if (!device_memory().holds(place, bytes)) {
    refuse("global", address, bytes, "not within one allocation");
  }
  return place;
}

std::byte* resolve(Warp& warp, const Instruction& in, int lane, std::uint32_t bytes,
                   std::uint32_t alignment) {
  warp.lane = lane;
  const std::uint64_t address = address_of(warp, in, lane);
  switch (in.space) {
    case Space::shared:
      return resolve_shared(warp, static_cast<std::uint32_t>(address), bytes, alignment);
    case Space::global:
      return resolve_global(address, bytes, alignment);
    case Space::local:
      return resolve_local(warp, lane, static_cast<std::uint32_t>(address), bytes, alignment);
    case Space::parameter:
    case Space::generic:
      break;
  }
  if ((address & kWindowMask) == kSharedWindow) {
    return resolve_shared(warp, static_cast<std::uint32_t>(address), bytes, alignment);
  }
  if ((address & kWindowMask) == kLocalWindow) {
    return resolve_local(warp, lane, static_cast<std::uint32_t>(address), bytes, alignment);
  }
  auto& parameters = warp.grid->parameters;
  const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(parameters.data());
  if (offset < parameters.size() && bytes <= parameters.size() - offset) {
    check_alignment("parameter", offset, bytes, alignment);
    return parameters.data() + offset;
  }
  return resolve_global(address, bytes, alignment);
}

}  // namespace tilewright::emulator
