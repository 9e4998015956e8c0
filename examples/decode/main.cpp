// Decoding with a KV cache in pages. The prompts' keys and values are appended by append_kv(); then
// each step attends to one new token of each sequence, whose key and value the same call appends.
// On the CPU in FP32, and on a Hopper GPU, where there is one, in BF16.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>

#include "array.hpp"
#include "tilewright/append_kv.hpp"
#include "tilewright/attention_with_kvcache.hpp"
#include "toy_model.hpp"

namespace {

using toy::Table;

constexpr std::int64_t kSequences = 2, kPageSize = 16, kPagesOfEach = 4;
constexpr int kSteps = 40;

// Sequences of tokens that grow, and their keys and values but for those of the last tokens.
template <typename T>
class Decoder {
 public:
  Decoder(tilewright::Device device, const std::vector<std::vector<int>>& prompts)
      : device_(device), sequences_(prompts) {
    // A sequence's pages may lie anywhere: here they take turns.
    for (std::int64_t i = 0; i < kSequences * kPagesOfEach; ++i) {
      block_table_.host()[static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>(i % kPagesOfEach * kSequences + i / kPagesOfEach);
    }
    block_table_.to_device();
    append_prompts();
  }

  // Every sequence gets a token. Returns the largest error of attention.
  float step() {
    Array<T, 4> q{device_, {kSequences, 1, toy::kHeads, toy::kHeadDim}};
    Array<T, 4> o{device_, {kSequences, 1, toy::kHeads, toy::kHeadDim}};
    Array<T, 4> k{device_, {kSequences, 1, toy::kKvHeads, toy::kHeadDim}};
    Array<T, 4> v{device_, {kSequences, 1, toy::kKvHeads, toy::kHeadDim}};
    std::vector<int> last;
    for (const std::vector<int>& tokens : sequences_) last.push_back(tokens.back());
    fill(q, Table::query, last);
    fill(k, Table::key, last);
    fill(v, Table::value, last);
    const tilewright::AttentionWithKvCacheTensors tensors{.q = q.view(),
                                                          .k_cache = k_cache_.view(),
                                                          .v_cache = v_cache_.view(),
                                                          .o = o.view(),
                                                          .cache_seqlens = lengths_.view(),
                                                          .block_table = block_table_.view(),
                                                          .k = k.view(),
                                                          .v = v.view()};
    const tilewright::AttentionWithKvCacheOptions options{.causal = true};
    const auto bytes =
        static_cast<std::int64_t>(attention_with_kvcache_workspace_bytes(tensors, options));
    Array<std::uint8_t, 1> workspace{device_, {std::max<std::int64_t>(bytes, 1)}};
    attention_with_kvcache(tensors, options, {workspace.data(), workspace.bytes()});
    o.to_host();
    return take_tokens(o.host());
  }

  const std::vector<std::vector<int>>& sequences() const { return sequences_; }

 private:
  // All tokens but the last of each, one sequence behind the other.
  void append_prompts() {
    std::vector<int> tokens;
    Array<std::int32_t, 1> ends{device_, {kSequences + 1}};
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      tokens.insert(tokens.end(), sequences_[b].begin(), sequences_[b].end() - 1);
      ends.host()[b + 1] = static_cast<std::int32_t>(tokens.size());
    }
    ends.to_device();
    const auto count = static_cast<std::int64_t>(tokens.size());
    Array<T, 3> k{device_, {count, toy::kKvHeads, toy::kHeadDim}};
    Array<T, 3> v{device_, {count, toy::kKvHeads, toy::kHeadDim}};
    fill(k, Table::key, tokens);
    fill(v, Table::value, tokens);
    tilewright::append_kv({.k = k.view(),
                           .v = v.view(),
                           .k_cache = k_cache_.view(),
                           .v_cache = v_cache_.view(),
                           .cache_seqlens = lengths_.view(),
                           .cu_seqlens_new = ends.view(),
                           .block_table = block_table_.view()});
    k_cache_.to_host();  // waits until k and v are no longer needed
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      lengths_.host()[b] = ends.host()[b + 1] - ends.host()[b];
    }
    lengths_.to_device();
  }

  template <std::size_t Rank>
  static void fill(Array<T, Rank>& rows, Table table, const std::vector<int>& tokens) {
    const std::size_t width = rows.host().size() / tokens.size();
    for (std::size_t i = 0; i < rows.host().size(); ++i) {
      rows.host()[i] = toy::entry(table, tokens[i / width], static_cast<std::int64_t>(i % width));
    }
    rows.to_device();
  }

  float take_tokens(const std::vector<T>& attended) {
    const std::size_t width = attended.size() / sequences_.size();
    float worst = 0;
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      const auto first = attended.begin() + static_cast<std::ptrdiff_t>(b * width);
      const std::vector<float> row(first, first + static_cast<std::ptrdiff_t>(width));
      const std::vector<float> expected = toy::attend_plainly(sequences_[b]);
      for (std::size_t i = 0; i < width; ++i) {
        worst = std::max(worst, std::abs(row[i] - expected[i]));
      }
      sequences_[b].push_back(toy::next_token(row));
      ++lengths_.host()[b];
    }
    lengths_.to_device();
    return worst;
  }

  tilewright::Device device_;
  std::vector<std::vector<int>> sequences_;
  Array<T, 4> k_cache_{device_,
                       {kSequences * kPagesOfEach, kPageSize, toy::kKvHeads, toy::kHeadDim}};
  Array<T, 4> v_cache_{device_,
                       {kSequences * kPagesOfEach, kPageSize, toy::kKvHeads, toy::kHeadDim}};
  Array<std::int32_t, 1> lengths_{device_, {kSequences}};  // of what the cache holds
  Array<std::int32_t, 2> block_table_{device_, {kSequences, kPagesOfEach}};
};

// Whether all steps are as near to the plain loop as the dtype allows.
template <typename T>
bool decode(tilewright::Device device, float tolerance) {
  Decoder<T> decoder(device, {{1, 2, 3}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 9, 8, 7, 6, 5, 4, 3, 2}});
  float worst = 0;
  for (int i = 0; i < kSteps; ++i) worst = std::max(worst, decoder.step());
  for (const std::vector<int>& tokens : decoder.sequences()) {
    for (const int token : tokens) std::printf("%d ", token);
    std::printf("\n");
  }
  std::printf("%s, %s: largest error %.1e\n", name(device).c_str(), name(kDType<T>).data(),
              static_cast<double>(worst));
  return worst < tolerance;
}

#ifdef DECODE_ON_GPU
bool has_hopper() {
  int count = 0, major = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  return major == 9;
}
#endif

}  // namespace

int main() {
  try {
    bool is_right = decode<float>({}, 1e-5f);
#ifdef DECODE_ON_GPU
    if (has_hopper()) {
      is_right &= decode<Bf16>({.kind = tilewright::DeviceKind::cuda}, 1e-2f);
    } else {
      std::printf("no Hopper GPU\n");
    }
#endif
    return is_right ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
