#include "problems/dsv4_forms.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include "problems/random.hpp"
#include "problems/views.hpp"
#include "tilewright/merge_states.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

// Takes one entry of a scope's tensors for each request and token.
template <typename OfRows>
void narrow(Dsv4Scope& scope, std::int64_t request, const OfRows& of_rows) {
  const auto if_given = [](auto& view, const auto& change) {
    if (view) {
      change(*view);
    }
  };
  const auto of_request = [&](auto& view) { view = narrowed(view, 0, request, 1); };
  if_given(scope.range_end, of_rows);
  if_given(scope.range_begin, of_rows);
  if_given(scope.indices, of_rows);
  if_given(scope.list_lengths, of_request);
  if_given(scope.block_table, of_request);
  if (scope.range_end && !scope.block_table) {
    of_request(scope.rows);
  }
}

// Moves page i of a cache to pages[i].
HostTensor moved(const HostTensor& rows, const std::vector<int>& pages) {
  HostTensor result = rows;
  const ConstTensorView view = rows.view();
  const std::int64_t element_bytes = static_cast<std::int64_t>(size_bytes(view.dtype));
  const auto stride = static_cast<std::size_t>(view.stride[0] * element_bytes);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::size_t to = static_cast<std::size_t>(pages[i]) * stride;
    const std::size_t bytes = std::min({stride, rows.bytes() - i * stride, rows.bytes() - to});
    std::memcpy(result.data() + to, rows.data() + i * stride, bytes);
  }
  return result;
}

void move_pages(Dsv4ScopeSet<HostTensor>& scope, Random& pick) {
  if (!scope.block_table && !scope.indices) {
    return;
  }
  const TensorView rows = scope.rows.view();
  const std::vector<int> pages = pick.permutation(static_cast<std::size_t>(rows.shape[0]));
  scope.rows = moved(scope.rows, pages);
  HostTensor& places = scope.block_table ? *scope.block_table : *scope.indices;
  const int page_size = scope.block_table ? 1 : static_cast<int>(rows.shape[1]);
  auto* const values = reinterpret_cast<int*>(places.data());
  for (std::size_t i = 0; i < places.bytes() / sizeof(int); ++i) {
    const int page = values[i] / page_size;
    if (values[i] >= 0 && page < rows.shape[0]) {
      values[i] = pages[static_cast<std::size_t>(page)] * page_size + values[i] % page_size;
    }
  }
}

// Makes a scope's keys those of part `part` of so many, which are cut at random; all calls with one
// seed cut at the same places.
void take_part(std::optional<Dsv4ScopeSet<HostTensor>>& scope, int part, int parts,
               std::uint64_t seed) {
  if (!scope) {
    return;
  }
  Random pick(seed);
  const auto cut = [&](int begin, int end) {
    std::vector<int> cuts = {begin, end};
    for (int i = 1; i < parts; ++i) {
      cuts.push_back(static_cast<int>(pick(begin, end)));
    }
    std::ranges::sort(cuts);
    return std::pair(cuts[static_cast<std::size_t>(part)],
                     cuts[static_cast<std::size_t>(part) + 1]);
  };
  if (scope->indices) {
    const TensorView list = scope->indices->view();
    const auto entries = static_cast<int>(list.shape[list.rank - 1]);
    for (std::int64_t b = 0; b < list.shape[0]; ++b) {
      int* const its = static_cast<int*>(list.data) + b * list.stride[0];
      const auto [first, end] = cut(0, entries);
      std::fill(its, its + first, -1);
      std::fill(its + end, its + entries, -1);
    }
    return;
  }
  const TensorView ends = scope->range_end->view();
  if (!scope->range_begin) {
    scope->range_begin = scope->range_end;
    reference::fill_constant(scope->range_begin->view(), 0);
  }
  const TensorView begins = scope->range_begin->view();
  for (std::int64_t b = 0; b < ends.shape[0]; ++b) {
    int& its_begin = static_cast<int*>(begins.data)[b * begins.stride[0]];
    int& its_end = static_cast<int*>(ends.data)[b * ends.stride[0]];
    std::tie(its_begin, its_end) = cut(its_begin, its_end);
  }
}

}  // namespace

Dsv4AttentionTensors alone(const Dsv4Problem& problem, const Dsv4AttentionTensors& tensors,
                           std::size_t b) {
  Dsv4AttentionTensors t = tensors;
  const auto entry = static_cast<std::int64_t>(b);
  const auto first = std::accumulate(problem.q_lens.begin(), problem.q_lens.begin() + entry, 0);
  // Of a tensor whose tokens are dimension `dim` if they are packed.
  const auto of_tokens = [&](auto& view, int dim) {
    view = problem.packed ? batch_of_one(narrowed(view, dim, first, problem.q_lens[b]))
                          : narrowed(view, 0, entry, 1);
  };
  const auto of_rows = [&](auto& view) { of_tokens(view, 0); };
  const auto of_statistic = [&](auto& view) { of_tokens(view, 1); };
  const auto if_given = [](auto& view, const auto& change) {
    if (view) {
      change(*view);
    }
  };
  of_rows(t.q);
  of_rows(t.o);
  if_given(t.fresh_rows, of_rows);
  if_given(t.positions, of_rows);
  if_given(t.o_scale, of_rows);
  if_given(t.lse, of_statistic);
  if_given(t.row_max, of_statistic);
  if_given(t.row_sum, of_statistic);
  for (std::optional<Dsv4Scope>* const scope : {&t.window, &t.compressed}) {
    if (*scope) {
      narrow(**scope, entry, of_rows);
    }
  }
  t.cu_seqlens_q.reset();
  return t;
}

Dsv4AttentionTensors of_heads(const Dsv4AttentionTensors& tensors, std::int64_t first,
                              std::int64_t count) {
  Dsv4AttentionTensors t = tensors;
  const auto narrow = [&](auto& view, int dim) {
    if (view) {
      view = narrowed(*view, dim, first, count);
    }
  };
  t.q = narrowed(t.q, 2, first, count);
  t.o = narrowed(t.o, 2, first, count);
  narrow(t.sinks, 0);
  narrow(t.o_scale, 2);
  narrow(t.lse, 1);
  narrow(t.row_max, 1);
  narrow(t.row_sum, 1);
  return t;
}

Dsv4HostTensors with_moved_pages(const Dsv4Problem& problem, const Dsv4HostTensors& tensors) {
  Dsv4HostTensors result = tensors;
  Random pick(problem.seed + 1);
  for (auto* const scope : {&result.window, &result.compressed}) {
    if (*scope) {
      move_pages(**scope, pick);
    }
  }
  return result;
}

std::vector<Dsv4HostTensors> in_parts(const Dsv4Problem& problem, int parts) {
  Dsv4Problem unnormalized = problem;
  unnormalized.unnormalized = true;
  unnormalized.sinks = Dsv4Sinks::none;
  std::vector<Dsv4HostTensors> results;
  for (int part = 0; part < parts; ++part) {
    Dsv4HostTensors& t = results.emplace_back(make_tensors(unnormalized));
    take_part(t.window, part, parts, problem.seed);
    take_part(t.compressed, part, parts, problem.seed + 1);
    if (part + 1 < parts && (t.window || t.compressed)) {
      t.fresh_rows.reset();
    }
  }
  return results;
}

Dsv4HostTensors merged(const Dsv4Problem& problem, std::vector<Dsv4HostTensors>& parts) {
  const auto count = static_cast<std::int64_t>(parts.size());
  const auto batch = static_cast<std::int64_t>(problem.batch());
  HostTensor o(DType::fp32, {count, batch, problem.heads, kDsv4HeadDim});
  HostTensor row_max(DType::fp32, {count, problem.heads, batch},
                     {problem.heads * batch, 1, problem.heads});
  HostTensor row_sum = row_max;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto copy = [&](const HostTensor& from, HostTensor& to) {
      std::memcpy(to.data() + i * from.bytes(), from.data(), from.bytes());
    };
    copy(parts[i].o, o);
    copy(*parts[i].row_max, row_max);
    copy(*parts[i].row_sum, row_sum);
  }
  Dsv4HostTensors result = make_tensors(problem);
  const auto without_tokens = [](TensorView view, int token_dim) {
    for (int i = token_dim; i + 1 < view.rank; ++i) {
      view.shape[i] = view.shape[i + 1];
      view.stride[i] = view.stride[i + 1];
    }
    --view.rank;
    return view;
  };
  TensorView lse = without_tokens(result.lse.view(), 2);
  std::swap(lse.shape[0], lse.shape[1]);
  std::swap(lse.stride[0], lse.stride[1]);
  MergeStatesTensors tensors{.o = o.view(),
                             .out = without_tokens(result.o.view(), 1),
                             .row_max = row_max.view(),
                             .row_sum = row_sum.view(),
                             .lse_out = lse};
  if (result.sinks) {
    tensors.sinks = result.sinks->view();
  }
  merge_states(tensors);
  return result;
}

}  // namespace tilewright::test
