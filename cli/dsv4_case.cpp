#include "cli/dsv4_case.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

#include "cli/attention_check.hpp"
#include "cli/device_memory.hpp"
#include "cli/kv_row_cache.hpp"
#include "reference/dsv4_attention.hpp"
#include "tilewright/dsv4_attention_kernels.hpp"
#include "tilewright/rope.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;
using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kDim = kDsv4HeadDim;
constexpr std::int64_t kPositions = 4096;  // of the rotation
constexpr std::uint64_t kSeedsOfTensors = 8;

// ---- Sizes

// Rows that a request has in a scope's cache.
std::int64_t window_rows(const Dsv4Problem& p) { return p.window.keys + p.q_len - 1; }
std::int64_t compressed_rows(const Dsv4Problem& p) {
  return p.has_list ? std::max(p.context, p.compressed.keys) : p.compressed.keys;
}

std::int64_t pages_of(const Dsv4ScopeSizes& scope, std::int64_t rows) {
  return (rows + scope.page_size - 1) / scope.page_size;
}

Dsv4ScopeProblem constraints_of(const Dsv4Problem& p, const Dsv4ScopeSizes& scope,
                                std::int64_t rows, bool is_list) {
  using Keys = Dsv4ScopeProblem::Keys;
  if (scope.keys == 0) {
    return {};
  }
  return {.keys = is_list ? Keys::list : Keys::range,
          .format = scope.format,
          .pages = p.batch * pages_of(scope, rows),
          .page_size = scope.page_size,
          .most_keys = scope.keys};
}

// What can_run() wants to know.
Dsv4AttentionProblem constraints_of(const Dsv4Problem& p) {
  return {.dtype = p.dtype,
          .batch = p.batch,
          .q_len = p.q_len,
          .heads = p.heads,
          .window = constraints_of(p, p.window, window_rows(p), false),
          .compressed = constraints_of(p, p.compressed, compressed_rows(p), p.has_list),
          .sinks = p.sinks,
          .inverse_rope = p.inverse_rope};
}

// ---- Inputs

struct ScopeInputs {
  HostTensor rows;
  std::optional<HostTensor> range_end, range_begin, block_table, indices;
  std::int64_t most_keys = 0;  // of a range
};

struct Inputs {
  HostTensor q;
  std::optional<ScopeInputs> window, compressed;
  std::optional<HostTensor> sinks, rotary_cos, rotary_sin, positions;
  std::optional<ExpectedAttention> expected;
};

HostTensor normal_tensor(DType dtype, const Numbers& shape, std::uint64_t seed) {
  HostTensor tensor(dtype, shape);
  reference::fill_normal(tensor.view(), seed);
  return tensor;
}

// A cache of normal values, page by page.
HostTensor normal_cache(const Dsv4ScopeSizes& scope, std::int64_t pages, std::uint64_t seed) {
  HostTensor cache = make_kv_row_cache(scope.format, pages, scope.page_size);
  HostTensor x(DType::fp32, {scope.page_size, kDim});
  Numbers slots(static_cast<std::size_t>(scope.page_size));
  for (std::int64_t page = 0; page < pages; ++page) {
    reference::fill_normal(x.view(), (seed << 32) + static_cast<std::uint64_t>(page));
    std::iota(slots.begin(), slots.end(), page * scope.page_size);
    quantize_kv_rows(
        {.x = x.view(),
         .rows = cache.view(),
         .slot_mapping = contiguous(slots.data(), DType::int64, std::array{scope.page_size})});
  }
  return cache;
}

// The pages of each request, in random order.
HostTensor random_table(std::int64_t batch, std::int64_t columns, std::uint64_t seed) {
  std::vector<int> pages(static_cast<std::size_t>(batch * columns));
  std::iota(pages.begin(), pages.end(), 0);
  std::ranges::shuffle(pages, std::mt19937_64(seed));
  HostTensor table(DType::int32, {batch, columns});
  std::ranges::copy(pages, reinterpret_cast<int*>(table.data()));
  return table;
}

// For each token `first`, or that and its number.
HostTensor bounds(const Dsv4Problem& p, std::int64_t first, bool advances) {
  HostTensor tensor(DType::int32, {p.batch, p.q_len});
  for (std::int64_t i = 0; i < p.batch * p.q_len; ++i) {
    reference::store(tensor.view(), i, static_cast<double>(first + (advances ? i % p.q_len : 0)));
  }
  return tensor;
}

// A range of a request's rows in pages.
ScopeInputs make_range(const Dsv4Problem& p, const Dsv4ScopeSizes& scope, std::int64_t rows,
                       bool advances, std::uint64_t seed) {
  const std::int64_t pages = pages_of(scope, rows);
  ScopeInputs inputs{.rows = normal_cache(scope, p.batch * pages, seed),
                     .range_end = bounds(p, scope.keys, advances),
                     .range_begin = {},
                     .block_table = random_table(p.batch, pages, seed),
                     .indices = {},
                     .most_keys = scope.keys};
  if (advances) {
    inputs.range_begin = bounds(p, 0, advances);
  }
  return inputs;
}

// For each token, different ones of its request's rows.
ScopeInputs make_list(const Dsv4Problem& p, std::uint64_t seed) {
  const Dsv4ScopeSizes& scope = p.compressed;
  const std::int64_t pages = pages_of(scope, compressed_rows(p));
  HostTensor indices(DType::int32, {p.batch, p.q_len, scope.keys});
  auto* next = reinterpret_cast<int*>(indices.data());
  std::mt19937_64 engine(seed);
  std::vector<int> slots(static_cast<std::size_t>(compressed_rows(p)));
  for (std::int64_t token = 0; token < p.batch * p.q_len; ++token) {
    const std::int64_t first = token / p.q_len * pages * scope.page_size;
    std::iota(slots.begin(), slots.end(), static_cast<int>(first));
    std::ranges::shuffle(slots, engine);
    next = std::copy_n(slots.begin(), scope.keys, next);
  }
  return {.rows = normal_cache(scope, p.batch * pages, seed),
          .range_end = {},
          .range_begin = {},
          .block_table = {},
          .indices = std::move(indices)};
}

void add_rotation(const Dsv4Problem& p, Inputs& inputs) {
  inputs.rotary_cos.emplace(DType::fp32, Numbers{kPositions, kDsv4RotaryDims / 2});
  inputs.rotary_sin = inputs.rotary_cos;
  rope_tables({}, inputs.rotary_cos->view(), inputs.rotary_sin->view());
  inputs.positions.emplace(DType::int64, Numbers{p.batch, p.q_len});
  std::mt19937_64 engine(p.seed);
  for (std::int64_t i = 0; i < p.batch * p.q_len; ++i) {
    reference::store(inputs.positions->view(), i, static_cast<double>(engine() % kPositions));
  }
}

Inputs make_inputs(const Dsv4Problem& p) {
  const std::uint64_t seed = kSeedsOfTensors * p.seed;
  Inputs inputs{.q = normal_tensor(p.dtype, {p.batch, p.q_len, p.heads, kDim}, seed),
                .window = {},
                .compressed = {},
                .sinks = {},
                .rotary_cos = {},
                .rotary_sin = {},
                .positions = {},
                .expected = {}};
  if (p.window.keys > 0) {
    inputs.window = make_range(p, p.window, window_rows(p), true, seed + 1);
  }
  if (p.compressed.keys > 0) {
    inputs.compressed = p.has_list
                            ? make_list(p, seed + 2)
                            : make_range(p, p.compressed, compressed_rows(p), false, seed + 2);
  }
  if (p.sinks) {
    inputs.sinks = normal_tensor(DType::fp32, {p.heads}, seed + 3);
  }
  if (p.inverse_rope) {
    add_rotation(p, inputs);
  }
  return inputs;
}

// All inputs, by a view of each; o is left out.
template <typename ViewOf>
Dsv4AttentionTensors tensors_of(Inputs& inputs, ViewOf&& view_of) {
  Dsv4AttentionTensors tensors{.q = view_of(inputs.q), .o = {}};
  const auto set = [&](auto& target, std::optional<HostTensor>& source) {
    if (source) {
      target = view_of(*source);
    }
  };
  const auto set_scope = [&](std::optional<Dsv4Scope>& target, std::optional<ScopeInputs>& source) {
    if (source) {
      target = Dsv4Scope{.rows = view_of(source->rows)};
      set(target->range_end, source->range_end);
      set(target->range_begin, source->range_begin);
      set(target->block_table, source->block_table);
      set(target->indices, source->indices);
      target->most_keys = source->most_keys;
    }
  };
  set_scope(tensors.window, inputs.window);
  set_scope(tensors.compressed, inputs.compressed);
  set(tensors.sinks, inputs.sinks);
  set(tensors.rotary_cos, inputs.rotary_cos);
  set(tensors.rotary_sin, inputs.rotary_sin);
  set(tensors.positions, inputs.positions);
  return tensors;
}

// ---- Tensors

class Tensors final : public CaseTensors {
 public:
  Tensors(const Dsv4Problem& problem, Inputs& inputs, Machine& machine)
      : problem_(problem),
        inputs_(inputs),
        memory_(machine),
        o_(memory_.output(problem.dtype, {problem.batch, problem.q_len, problem.heads, kDim})),
        lse_(memory_.output(DType::fp32, {problem.batch, problem.heads, problem.q_len})),
        tensors_(tensors_of(inputs, [&](HostTensor& tensor) { return memory_.upload(tensor); })) {
    tensors_.o = o_.view;
  }

  // Without LSE.
  Launch launch(const KernelInfo& kernel) override { return launch(kernel, tensors_); }

  // With LSE.
  CheckResult check(const KernelInfo& kernel) override {
    Dsv4AttentionTensors with_lse = tensors_;
    with_lse.lse = lse_.view;
    memory_.run(launch(kernel, with_lse), {&o_, &lse_});
    return check_attention(o_, lse_, expected());
  }

 private:
  Launch launch(const KernelInfo& kernel, const Dsv4AttentionTensors& tensors) {
    const Dsv4AttentionOptions options{.scale = problem_.scale, .kernel = kernel.name};
    const Workspace workspace = memory_.workspace(dsv4_attention_workspace_bytes(tensors, options));
    return [tensors, options, workspace](Stream stream) {
      dsv4_attention(tensors, options, workspace, stream);
    };
  }

  // Takes long at the first call of a case.
  const ExpectedAttention& expected() {
    if (!inputs_.expected) {
      const Dsv4AttentionTensors tensors =
          tensors_of(inputs_, [](HostTensor& tensor) { return tensor.view(); });
      inputs_.expected = expect_attention(problem_.dtype, [&](reference::Rounding rounding) {
        return reference::dsv4_attention(tensors, {.scale = problem_.scale}, rounding);
      });
    }
    return *inputs_.expected;
  }

  const Dsv4Problem& problem_;
  Inputs& inputs_;
  DeviceMemory memory_;
  Output o_, lse_;
  Dsv4AttentionTensors tensors_;
};

// ---- The case

class Dsv4Case final : public CaseOf<Dsv4Attention> {
 public:
  explicit Dsv4Case(const Dsv4Problem& problem) : problem_(problem) {}

  std::string_view operation() const override { return Dsv4Attention::kName; }

  Json to_json() const override {
    const Dsv4Problem& p = problem_;
    Json object = {
        {"dtype", name(p.dtype)}, {"batch", p.batch}, {"q_len", p.q_len}, {"heads", p.heads}};
    const auto add = [&](const std::string& scope, const Dsv4ScopeSizes& sizes) {
      object[scope] = sizes.keys;
      if (sizes.keys > 0) {
        object[scope + "_rows"] = name(sizes.format);
        object[scope + "_page_size"] = sizes.page_size;
      }
    };
    add("window", p.window);
    add("compressed", p.compressed);
    if (p.compressed.keys > 0) {
      object["compressed_keys"] = keys_text();
      object["context"] = compressed_rows(p);
    }
    object["sinks"] = p.sinks;
    object["inverse_rope"] = p.inverse_rope;
    return object;
  }

  // "bf16 b8 q1 h64, window 128 e4m3_bf16, list 512 e4m3_bf16, sinks"
  std::string label() const override {
    const Dsv4Problem& p = problem_;
    std::string text = fmt::format("{} b{} q{} h{}", name(p.dtype), p.batch, p.q_len, p.heads);
    const auto add = [&](std::string_view scope, const Dsv4ScopeSizes& sizes) {
      if (sizes.keys > 0) {
        text += fmt::format(", {} {} {} pages of {}", scope, sizes.keys, name(sizes.format),
                            sizes.page_size);
      }
    };
    add("window", p.window);
    add(keys_text(), p.compressed);
    return text + (p.sinks ? ", sinks" : "") + (p.inverse_rope ? ", inverse rope" : "");
  }

  std::string arguments() const override {
    const Dsv4Problem& p = problem_;
    return fmt::format(
        "dsv4-attention --dtype {} --batch {} --seqlen {} --heads {} --window {} --window-rows {} "
        "--window-page-size {} --compressed {} --compressed-rows {} --compressed-page-size {} "
        "--compressed-keys {} --context {} --{}sinks --{}inverse-rope{} --seed {}",
        name(p.dtype), p.batch, p.q_len, p.heads, p.window.keys, name(p.window.format),
        p.window.page_size, p.compressed.keys, name(p.compressed.format), p.compressed.page_size,
        keys_text(), p.context, p.sinks ? "" : "no-", p.inverse_rope ? "" : "no-",
        p.scale ? fmt::format(" --scale {}", *p.scale) : "", p.seed);
  }

  // 4 H 512 for each pair of a token and a key.
  double flops() const override {
    return 4.0 * static_cast<double>(problem_.heads * kDim) * tokens() *
           static_cast<double>(problem_.window.keys + problem_.compressed.keys);
  }

  // Those of q, o and the rows that are seen, which tokens of a request share but in lists.
  double bytes() const override {
    const Dsv4Problem& p = problem_;
    const double window =
        p.window.keys == 0
            ? 0.0
            : static_cast<double>(p.batch * window_rows(p) * kv_row_bytes(p.window.format));
    const double lists = p.has_list ? tokens() : static_cast<double>(p.batch);
    const double compressed =
        lists * static_cast<double>(p.compressed.keys * kv_row_bytes(p.compressed.format));
    return window + compressed +
           2.0 * tokens() * static_cast<double>(p.heads * kDim) *
               static_cast<double>(size_bytes(p.dtype));
  }

  std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const override {
    return can_run(*find_kernel<Dsv4Attention>(kernel.name), constraints_of(problem_),
                   device_info(device));
  }

  std::unique_ptr<CaseTensors> make_tensors(Machine& machine) override {
    if (!inputs_) {
      check_host_memory(host_bytes());
      inputs_ = make_inputs(problem_);
    }
    return std::make_unique<Tensors>(problem_, *inputs_, machine);
  }

 private:
  double tokens() const { return static_cast<double>(problem_.batch * problem_.q_len); }
  std::string_view keys_text() const { return problem_.has_list ? "list" : "range"; }

  // Of caches, and their copies on the machine.
  double host_bytes() const {
    const Dsv4Problem& p = problem_;
    return 2.0 * static_cast<double>(p.batch) *
           static_cast<double>(window_rows(p) * kv_row_bytes(p.window.format) +
                               compressed_rows(p) * kv_row_bytes(p.compressed.format));
  }

  Dsv4Problem problem_;
  std::optional<Inputs> inputs_;
};

}  // namespace

std::unique_ptr<Case> make_dsv4_case(const Dsv4Problem& problem) {
  return std::make_unique<Dsv4Case>(problem);
}

}  // namespace tilewright::cli
