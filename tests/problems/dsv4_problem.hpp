// Problems of DeepSeek-V4's attention: tokens, features, scopes with their formats and pages,
// inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/dsv4_attention.hpp"
#include "tilewright/dsv4_attention_kernels.hpp"

namespace tilewright::test {

// How a scope's keys are given. A list may have -1 and the same slot several times.
enum class Dsv4Keys { none, range, list, empty_list };

// A scope. Of a range, token i of request b sees the positions up to ends[b] + i * advance, at most
// `most` of them. Of a list, lengths are ends[b] where has_lengths, and `entries` otherwise.
struct Dsv4ScopeCase {
  Dsv4Keys keys = Dsv4Keys::none;
  KvRowFormat format = KvRowFormat::bf16;
  std::int64_t page_size = 64;
  std::vector<int> ends{};
  int advance = 0;
  int most = 0;            // 0: all of them, and no range_begin
  bool has_table = false;  // of a range; otherwise each request has a page
  int capacity = 0;        // rows that a row of the table names pages for, or more
  int ring = 0;
  int most_keys = 0;       // the bound of a range; 0: none is given
  std::int64_t pages = 0;  // of a list's cache, or of a range's that no request has
  std::int64_t entries = 0;
  bool has_lengths = false;

  bool is_list() const { return keys == Dsv4Keys::list || keys == Dsv4Keys::empty_list; }
};

// none, normal ones, or infinities and NaN among them.
enum class Dsv4Sinks { none, normal, special };

struct Dsv4Problem {
  DType dtype = DType::bf16;
  std::int64_t heads = 8;
  std::vector<int> q_lens{};  // of each request; where not packed, all are equal
  bool packed = false;        // with some rows behind the last request
  Dsv4ScopeCase window{};
  Dsv4ScopeCase compressed{};
  bool fresh_rows = false;
  Dsv4Sinks sinks = Dsv4Sinks::none;
  bool lse_counts_sink = true;
  bool unnormalized = false;
  bool inverse_rope = false;
  bool e4m3_output = false;
  bool padded = false;  // gaps between rows, pages and tokens
  bool odd_scales = false;
  double key_deviation = 1.0;
  double compressed_deviation = 1.0;  // of the compressed scope's keys, times that
  std::optional<float> scale = std::nullopt;
  std::uint64_t seed = 1;

  std::size_t batch() const { return q_lens.size(); }
};

// All of it: no two different problems have the same text.
std::ostream& operator<<(std::ostream& out, const Dsv4Problem& problem);

Dsv4AttentionOptions options_of(const Dsv4Problem& problem, std::string_view kernel);

// What can_run() wants to know of it.
Dsv4AttentionProblem constraints_of(const Dsv4Problem& problem);

// A scope's tensors, in host or device memory.
template <typename Tensor>
struct Dsv4ScopeSet {
  Tensor rows;
  std::optional<Tensor> range_end, range_begin, block_table, indices, list_lengths;
  int ring = 0;
  int most_keys = 0;

  // Calls f(tensor) for each of them that is given.
  template <typename F>
  void for_each(F f) {
    f(rows);
    for (auto* const tensor : {&range_end, &range_begin, &block_table, &indices, &list_lengths}) {
      if (*tensor) {
        f(**tensor);
      }
    }
  }

  Dsv4Scope views() {
    Dsv4Scope scope{.rows = rows.view()};
    const auto set = [](auto& target, std::optional<Tensor>& source) {
      if (source) {
        target = source->view();
      }
    };
    set(scope.range_end, range_end);
    set(scope.range_begin, range_begin);
    set(scope.block_table, block_table);
    set(scope.indices, indices);
    set(scope.list_lengths, list_lengths);
    scope.ring = ring;
    scope.most_keys = most_keys;
    return scope;
  }
};

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct Dsv4TensorSet {
  Tensor q, o, lse;
  std::optional<Dsv4ScopeSet<Tensor>> window, compressed;
  std::optional<Tensor> fresh_rows, sinks, row_max, row_sum, rotary_cos, rotary_sin, positions,
      o_scale, cu_seqlens_q;

  Dsv4AttentionTensors views() {
    Dsv4AttentionTensors tensors{.q = q.view(), .o = o.view(), .lse = lse.view()};
    const auto set = [](auto& target, auto& source) {
      if (source) {
        if constexpr (requires { source->views(); }) {
          target = source->views();
        } else {
          target = source->view();
        }
      }
    };
    set(tensors.window, window);
    set(tensors.compressed, compressed);
    set(tensors.fresh_rows, fresh_rows);
    set(tensors.sinks, sinks);
    set(tensors.row_max, row_max);
    set(tensors.row_sum, row_sum);
    set(tensors.rotary_cos, rotary_cos);
    set(tensors.rotary_sin, rotary_sin);
    set(tensors.positions, positions);
    set(tensors.o_scale, o_scale);
    set(tensors.cu_seqlens_q, cu_seqlens_q);
    return tensors;
  }

  // All that a call reads.
  std::vector<Tensor*> inputs() {
    std::vector<Tensor*> all{&q};
    for (auto* const scope : {&window, &compressed}) {
      if (*scope) {
        (*scope)->for_each([&](Tensor& tensor) { all.push_back(&tensor); });
      }
    }
    add(all, {&fresh_rows, &sinks, &rotary_cos, &rotary_sin, &positions, &cu_seqlens_q});
    return all;
  }

  // All that a call writes.
  std::vector<Tensor*> outputs() {
    std::vector<Tensor*> all{&o, &lse};
    add(all, {&row_max, &row_sum, &o_scale});
    return all;
  }

 private:
  static void add(std::vector<Tensor*>& all,
                  std::initializer_list<std::optional<Tensor>*> tensors) {
    for (std::optional<Tensor>* const tensor : tensors) {
      if (*tensor) {
        all.push_back(&**tensor);
      }
    }
  }
};

using Dsv4HostTensors = Dsv4TensorSet<reference::HostTensor>;

// Inputs of a problem, and outputs filled with kUnwritten. What no result may depend on is NaN or
// garbage: rows that no token sees, bytes between rows and pages, the padding of rows, tokens
// behind the last request, entries of tables and lists beyond ends, positions of no token.
Dsv4HostTensors make_tensors(const Dsv4Problem& problem);

}  // namespace tilewright::test
