// A row of a cache as four neighbouring lanes take it.
#pragma once

#include "cuda/attention/dsv4_decode/lane.cuh"

namespace tilewright::cuda::dsv4 {

// A lane's share of a row: 16 dims of each group.
template <KvRowFormat kFormat>
class LaneRow {
 public:
  using F = Format<kFormat>;
  using Raw = typename F::Raw;
  using Scales = typename F::Scales;
  static constexpr KvRowParts kParts = parts_of(kFormat);
  static constexpr int kCodedGroups = kParts.coded_dims / kBlockDims;  // the others are BF16

  __device__ explicit LaneRow(const RowAt& row)
      : data_(row.data), scales_(kParts.has_planes ? row.scales : row.data + kParts.data_bytes()) {}

  template <typename From = FromMemory>
  __device__ Scales scales() const {
    return F::template scales<From>(scales_, quarter());
  }
  // The scale of a group's 16 dims alone: its byte.
  __device__ std::uint32_t scale(int group) const {
    constexpr int kLaneDims = kBlockDims / 4;
    return __ldg(scales_ + (group * kBlockDims + quarter() * kLaneDims) / kParts.group);
  }
  template <typename From = FromMemory>
  __device__ Raw load(int group) const {
    return F::template load<From>(data_ + quarter() * F::kLane_bytes, group);
  }

  // The values of a group, whatever its scale.
  __device__ SixteenValues values(int group) const {
    if (group >= kCodedGroups) {
      const std::uint8_t* const at = uncoded(group);
      return {FromMemory::load16(at), FromMemory::load16(at + 16)};
    }
    return widen_any<F>(load(group), group, scales());
  }

  // Copies a BF16 group to a column block in SMEM, asynchronously.
  __device__ void copy(int group, const LanePlace& to, int block) const {
    const std::uint8_t* const from = uncoded(group);
    copy_async<16>(to.vector(block, 0, 0), from, true);
    copy_async<16>(to.vector(block, 0, 1), from + 16, true);
  }

 private:
  __device__ static int quarter() { return this_thread() % 4; }

  // Where the lane's share of a BF16 group lies.
  __device__ const std::uint8_t* uncoded(int group) const {
    return data_ + kParts.code_bytes() + (group - kCodedGroups) * 128 + quarter() * 32;
  }

  const std::uint8_t* data_;
  const std::uint8_t* scales_;
};

// The same in registers, of a coded format.
template <KvRowFormat kFormat>
class WholeRow {
 public:
  using Its = LaneRow<kFormat>;

  __device__ __forceinline__ void load(const Its& its) {
#pragma unroll
    for (int group = 0; group < Its::kCodedGroups; ++group) {
      raw_[group] = its.load(group);
    }
    if constexpr (Its::kCodedGroups < kGroups) {
      raw_[kGroups - 1] = its.load(kGroups - 1);
      last_ = its.load(kGroups).low;
    }
    scales_ = its.scales();
  }

  // Has a row of the warp a scale that exceeds?
  __device__ bool some_exceed() const { return __any_sync(0xffffffffu, scales_.some_exceed()); }

  // The values of a group, if none exceeds.
  __device__ __forceinline__ SixteenValues values(int group) const {
    return group < Its::kCodedGroups ? Its::F::widen(raw_[group], group, scales_) : last();
  }

  // Brings a row to L2, line by line. Its four lanes share that.
  __device__ static void bring(const RowAt& row) {
    constexpr KvRowParts kParts = parts_of(kFormat);
    constexpr int kLast = (kParts.has_planes ? kParts.data_bytes() : kParts.row_bytes()) - 1;
    static_assert(kLast < 5 * kLine_bytes);
    const int lane = this_thread() % 4;
    prefetch_line(row.data + min(lane * kLine_bytes, kLast));
    prefetch_line(kParts.has_planes && lane == 0 ? row.scales : row.data + kLast);
  }

 private:
  // The last group, if it is BF16.
  __device__ SixteenValues last() const {
    if constexpr (Its::kCodedGroups < kGroups) {
      return {raw_[kGroups - 1].low, last_};
    }
    return {};
  }

  typename Its::Raw raw_[kGroups];
  typename Its::Scales scales_;
  uint4 last_;
};

}  // namespace tilewright::cuda::dsv4
