// The checks of a call of dsv4_attention(), besides those of attention_checks.hpp.
#pragma once

#include <cstdint>

#include "ops/attention_checks.hpp"
#include "tilewright/dsv4_attention.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

inline constexpr std::int64_t kMaxNewTokens = 8;  // of a request

// What a scope's arguments are called in messages.
struct ScopeNames {
  const char* scope;
  const char* rows;
  const char* range_end;
  const char* range_begin;
  const char* block_table;
  const char* ring;
  const char* most_keys;
  const char* indices;
  const char* list_lengths;
};

inline constexpr ScopeNames kWindowNames = {"window",
                                            "window.rows",
                                            "window.range_end",
                                            "window.range_begin",
                                            "window.block_table",
                                            "window.ring",
                                            "window.most_keys",
                                            "window.indices",
                                            "window.list_lengths"};
inline constexpr ScopeNames kCompressedNames = {"compressed",
                                                "compressed.rows",
                                                "compressed.range_end",
                                                "compressed.range_begin",
                                                "compressed.block_table",
                                                "compressed.ring",
                                                "compressed.most_keys",
                                                "compressed.indices",
                                                "compressed.list_lengths"};

// Calls f(scope, names) for each scope that is given.
template <typename F>
void for_each_scope(const Dsv4AttentionTensors& t, F f) {
  if (t.window) {
    f(*t.window, kWindowNames);
  }
  if (t.compressed) {
    f(*t.compressed, kCompressedNames);
  }
}

// Checks a call as far as it can be before a kernel is selected. Reads no data.
void check_arguments(const Dsv4AttentionTensors& tensors, const Dsv4AttentionOptions& options);

// Checks that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const Dsv4AttentionTensors& tensors, const KernelInfo& kernel);

// Checks the values of ranges, tables, indices, lengths and positions, and the scales of rows that
// a token sees. If they are on a GPU, it copies them from there, after the stream's work.
void check_values(const Dsv4AttentionTensors& tensors, Stream stream);

// Of tensors that check_arguments() has passed:

// the number of requests,
std::int64_t batch_size(const Dsv4AttentionTensors& tensors);

// the positions that a request's pages of a scope have a row for, without regard to a ring,
std::int64_t capacity_of(const Dsv4Scope& scope);

// and the most keys of it that a token can see.
std::int64_t most_keys_of(const Dsv4Scope& scope);

}  // namespace tilewright
