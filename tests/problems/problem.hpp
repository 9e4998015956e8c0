// Attention problems for tests: shapes, features, memory layouts, inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::test {

// The order of a ([B,] N, H, D) tensor in memory.
enum class MemoryOrder { dense, heads_first, padded_rows, broadcast_kv };

enum class Inputs {
  normal,
  large,
  constant,
  rising,
  falling,
  negative  // all scores are negative
};

// Rows [first, end) of q or k, of every sequence and head, or so many heads' sinks: all that value.
struct Special {
  enum class In { q, k, sinks };
  In in;
  std::int64_t first;
  std::int64_t end;
  float value;
};

struct Problem {
  std::int64_t batch = 1;
  std::int64_t q_len = 1;   // of each sequence; where packed, rows of q
  std::int64_t kv_len = 1;  // of each sequence; where packed, rows of k and v
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t value_dim = 0;  // 0: head_dim
  DType dtype = DType::bf16;
  bool causal = false;
  Window window{};
  float softcap = 0;
  bool sinks = false;
  std::vector<int> q_lens{};   // packed: the length of each sequence; rows behind the last are NaN
  std::vector<int> kv_lens{};  // likewise
  std::vector<int> used_kv{};  // the keys of each sequence that count, where not all do
  bool unnormalized = false;
  bool batch_invariant = false;
  MemoryOrder order = MemoryOrder::dense;
  Inputs inputs = Inputs::normal;
  std::vector<Special> specials{};  // of tensors that are not packed
  std::optional<float> scale = std::nullopt;
  std::uint64_t seed = 1;
};

// All of it: no two different problems have the same text.
std::ostream& operator<<(std::ostream& out, const Problem& problem);

AttentionOptions options_of(const Problem& problem, std::string_view kernel);

// What can_run() wants to know of it.
AttentionProblem constraints_of(const Problem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct TensorSet {
  Tensor q, k, v, o, lse;
  std::optional<Tensor> sinks, cu_seqlens_q, cu_seqlens_k, seqused_k, row_max, row_sum;

  AttentionTensors views() {
    AttentionTensors tensors{
        .q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse.view()};
    const auto set = [](auto& target, std::optional<Tensor>& source) {
      if (source) {
        target = source->view();
      }
    };
    set(tensors.sinks, sinks);
    set(tensors.cu_seqlens_q, cu_seqlens_q);
    set(tensors.cu_seqlens_k, cu_seqlens_k);
    set(tensors.seqused_k, seqused_k);
    set(tensors.row_max, row_max);
    set(tensors.row_sum, row_sum);
    return tensors;
  }

  std::vector<Tensor*> outputs() {
    std::vector<Tensor*> all{&o, &lse};
    for (std::optional<Tensor>* const statistic : {&row_max, &row_sum}) {
      if (*statistic) {
        all.push_back(&**statistic);
      }
    }
    return all;
  }
};

using HostTensors = TensorSet<reference::HostTensor>;

// Inputs of a problem, and outputs filled with NaN bytes (kUnwritten). Inputs that no result may
// depend on are NaN: rows behind the last sequence, and keys and values that no query sees.
HostTensors make_tensors(const Problem& problem);

inline constexpr std::byte kUnwritten{0xFF};

}  // namespace tilewright::test
