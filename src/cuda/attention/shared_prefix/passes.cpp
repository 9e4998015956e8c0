#include "cuda/attention/shared_prefix/passes.hpp"

namespace tilewright::cuda {
namespace {

using Params = AttentionWithKvCacheParams;

// Memory in the workspace.
template <typename T>
T* at(const Params& p, std::size_t offset) {
  return static_cast<T*>(static_cast<void*>(static_cast<char*>(p.workspace) + offset));
}

bool is_packed(const Params& p) { return p.packed_q.cu_seqlens != nullptr; }

int all_tokens(const Params& p) { return is_packed(p) ? p.q_len : p.batch * p.q_len; }

// Do q's tokens lie at one stride, through all sequences?
bool has_one_stride(const Params& p) {
  return is_packed(p) || p.batch == 1 || p.q_len == 1 ||
         p.q_stride.batch == p.q_len * p.q_stride.seq;
}

// Makes all rows those of one batch entry.
void set_batch_strides_to_0(Params& pass) {
  pass.o_stride.batch = 0;
  pass.statistics.max_stride.batch = 0;
  pass.statistics.sum_stride.batch = 0;
}

// A call with its un-normalised results in the workspace, those of the prefix pass first. New rows
// are in the caches, and sinks come with the merge.
Params partial_results(const Params& p, const SharedPrefixWorkspace& places) {
  const std::int64_t heads = p.heads;
  const OuterStrides statistic{.batch = p.q_len * heads, .seq = heads, .head = 1};
  Params parts = p;
  parts.o = at<float>(p, places.o);
  parts.o_stride = {.batch = statistic.batch * p.value_dim,
                    .seq = statistic.seq * p.value_dim,
                    .head = p.value_dim};
  parts.statistics = {.max = at<float>(p, places.row_max),
                      .sum = at<float>(p, places.row_sum),
                      .max_stride = statistic,
                      .sum_stride = statistic};
  parts.lse = nullptr;
  parts.sinks = {};
  parts.added = {};
  parts.prefixes = {};
  parts.workspace = at<void>(p, places.pass);
  return parts;
}

// All tokens are packed, in their order.
Params prefix_pass(Params pass, const SplitLengths& lengths, const void* packed_q) {
  if (packed_q != nullptr) {
    pass.q = packed_q;
    pass.q_stride = {
        .batch = 0, .seq = std::int64_t{pass.heads} * pass.head_dim, .head = pass.head_dim};
  } else if (pass.q_len == 1) {
    pass.q_stride.seq = pass.q_stride.batch;
  }
  pass.q_stride.batch = 0;
  set_batch_strides_to_0(pass);
  pass.q_len = all_tokens(pass);
  pass.packed_q.cu_seqlens = lengths.tokens;
  pass.rows.cache_seqlens = lengths.shared;
  pass.causal = false;
  pass.tree = {};
  return pass;
}

Params suffix_pass(Params pass, const SplitLengths& lengths) {
  const std::int64_t rows = std::int64_t{all_tokens(pass)} * pass.heads;
  pass.o = static_cast<float*>(pass.o) + rows * pass.value_dim;
  pass.statistics.max += rows;
  pass.statistics.sum += rows;
  if (is_packed(pass)) {
    set_batch_strides_to_0(pass);
  }
  pass.rows.cache_seqlens = lengths.keys;
  pass.rows.leftpad = lengths.shared;
  return pass;
}

}  // namespace

SharedPrefixCalls calls_of(const Params& p, const SharedPrefixWorkspace& places) {
  const int count = p.batch + 1;
  int* const numbers = at<int>(p, 0);
  SharedPrefixCalls calls{
      .lengths = {.tokens = numbers, .shared = numbers + count, .keys = numbers + 2 * count},
      .packed_q = has_one_stride(p) ? nullptr : at<void>(p, places.q),
      .prefix = {},
      .suffix = {},
      .merged = p,
      .parts = partial_results(p, places),
      .rows_end = nullptr};
  calls.prefix = prefix_pass(calls.parts, calls.lengths, calls.packed_q);
  calls.suffix = suffix_pass(calls.parts, calls.lengths);
  if (is_packed(p)) {
    calls.merged.batch = 1;
    calls.rows_end = p.packed_q.cu_seqlens + p.batch;
  }
  return calls;
}

}  // namespace tilewright::cuda
