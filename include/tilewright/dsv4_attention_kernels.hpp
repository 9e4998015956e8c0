// The operation dsv4_attention(), as the registry describes it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tilewright/dsv4_attention.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Features that a kernel may or may not have.
enum class Dsv4Feature : std::uint8_t {
  range,         // a scope's keys given as a range
  list,          // or as indices
  packed,        // cu_seqlens_q
  fresh_rows,    // keys that no cache holds
  sinks,         // logits without values
  unnormalized,  // row_max and row_sum
  inverse_rope,  // o rotated back
  e4m3_output,   // o quantised, with o_scale
};

constexpr std::string_view name(Dsv4Feature feature) {
  switch (feature) {
    case Dsv4Feature::range:
      return "range_end";
    case Dsv4Feature::list:
      return "indices";
    case Dsv4Feature::packed:
      return "packed";
    case Dsv4Feature::fresh_rows:
      return "fresh_rows";
    case Dsv4Feature::sinks:
      return "sinks";
    case Dsv4Feature::unnormalized:
      return "unnormalized";
    case Dsv4Feature::inverse_rope:
      return "inverse rope";
    case Dsv4Feature::e4m3_output:
      return "e4m3 output";
  }
  return "unknown";
}

// What a kernel takes.
struct Dsv4AttentionFacts {
  std::span<const int> heads = {};  // empty: any from 1 to 128
  std::span<const KvRowFormat> window_formats = {};
  std::span<const KvRowFormat> compressed_formats = {};
  std::span<const Dsv4Feature> features = {};
};

// A scope, as far as it decides which kernels can run a problem.
struct Dsv4ScopeProblem {
  enum class Keys : std::uint8_t { none, range, list };

  Keys keys = Keys::none;
  KvRowFormat format = KvRowFormat::bf16;
  std::int64_t pages = 1;
  std::int64_t page_size = 1;
  std::int64_t most_keys = 1;  // that a token can see: of a list its entries, of a range its bound,
                               // or the rows of a ring or of a request's pages if there are fewer
};

// A problem, as far as it decides which kernels can run it. Sizes are at least 1 and less than
// 2^30, like those of tensors.
struct Dsv4AttentionProblem {
  DType dtype = DType::bf16;  // of q
  std::int64_t batch = 1;
  std::int64_t q_len = 1;  // new tokens of a request; packed: of all requests together
  std::int64_t heads = 1;
  Dsv4ScopeProblem window = {};
  Dsv4ScopeProblem compressed = {};
  bool packed = false;
  bool fresh_rows = false;
  bool sinks = false;
  bool unnormalized = false;
  bool inverse_rope = false;
  bool e4m3_output = false;

  bool asks_for(Dsv4Feature feature) const;
};

struct Dsv4AttentionParams;

struct Dsv4Attention {
  static constexpr std::string_view kName = "dsv4_attention";
  using Tensors = Dsv4AttentionTensors;
  using Options = Dsv4AttentionOptions;
  using Problem = Dsv4AttentionProblem;
  using Facts = Dsv4AttentionFacts;
  using Params = Dsv4AttentionParams;
};

// The library has the table.
template <>
std::span<const Kernel<Dsv4Attention>> Table<Dsv4Attention>::rows();
extern template struct Table<Dsv4Attention>;

}  // namespace tilewright
