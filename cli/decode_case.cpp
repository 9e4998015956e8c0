#include "cli/decode_case.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cli/attention_check.hpp"
#include "cli/device_memory.hpp"
#include "reference/attention_with_kvcache.hpp"
#include "reference/nvfp4.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;
using Lengths = std::vector<std::int64_t>;

constexpr double kDescaleOfQ = 1.5;
constexpr double kDescaleOfK = 0.75;
constexpr double kDescaleOfV = 0.5;

// ---- Sizes

// Of a list that is of each sequence, or has one for all.
std::int64_t of_sequence(const Lengths& lengths, std::int64_t b) {
  return lengths.size() == 1 ? lengths.front() : lengths[static_cast<std::size_t>(b)];
}

std::int64_t total(const DecodeProblem& p, const Lengths& lengths) {
  return lengths.size() == 1 ? p.batch * lengths.front()
                             : std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

// Of a function of each sequence's new tokens and keys.
template <typename Function>
double total_of(const DecodeProblem& p, Function&& function) {
  if (p.q_lens.size() == 1 && p.kv_lens.size() == 1) {
    return static_cast<double>(p.batch) * function(p.q_lens.front(), p.kv_lens.front());
  }
  double sum = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    sum += function(of_sequence(p.q_lens, b), of_sequence(p.kv_lens, b));
  }
  return sum;
}

bool is_packed(const DecodeProblem& p) { return p.q_lens.size() > 1; }
bool is_e4m3(const DecodeProblem& p) { return p.cache_dtype == DType::e4m3; }
DType output_dtype(const DecodeProblem& p) {
  return p.dtype == DType::e4m3 ? DType::bf16 : p.dtype;
}
std::int64_t most_keys(const DecodeProblem& p) { return std::ranges::max(p.kv_lens); }
std::int64_t most_tokens(const DecodeProblem& p) { return std::ranges::max(p.q_lens); }

// New tokens of a sequence; packed: of all together.
std::int64_t q_len(const DecodeProblem& p) {
  return is_packed(p) ? total(p, p.q_lens) : p.q_lens.front();
}

// Of each sequence, or one for all.
Lengths page_counts(const DecodeProblem& p) {
  Lengths counts;
  for (const std::int64_t kv_len : p.kv_lens) {
    counts.push_back((kv_len + p.page_size - 1) / p.page_size);
  }
  return counts;
}

// The first two sizes of the caches.
Lengths cache_rows(const DecodeProblem& p) {
  if (p.page_size == 0) {
    return {p.batch, most_keys(p)};
  }
  return {total(p, page_counts(p)), p.page_size};
}

// Of q and o, with their head dim behind.
Lengths query_shape(const DecodeProblem& p, std::int64_t head_dim) {
  if (is_packed(p)) {
    return {q_len(p), p.heads, head_dim};
  }
  return {p.batch, q_len(p), p.heads, head_dim};
}

Lengths lse_shape(const DecodeProblem& p) {
  if (is_packed(p)) {
    return {p.heads, q_len(p)};
  }
  return {p.batch, p.heads, q_len(p)};
}

// What can_run() wants to know.
AttentionWithKvCacheProblem constraints_of(const DecodeProblem& p) {
  const Lengths rows = cache_rows(p);
  const Window window = p.features.window();
  return {.dtype = p.dtype,
          .cache_dtype = p.cache_dtype,
          .batch = p.batch,
          .q_len = q_len(p),
          .cache_rows = rows[0],
          .page_size = p.page_size,
          .capacity = p.page_size == 0 ? rows[1] : std::ranges::max(page_counts(p)) * p.page_size,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .value_dim = p.value_dim,
          .causal = p.features.causal,
          .window = window.left || window.right,
          .softcap = p.features.softcap > 0,
          .sinks = p.features.sinks,
          .packed = is_packed(p),
          .batch_invariant = p.batch_invariant,
          .max_seqlen_q = most_tokens(p),
          .window_left = window.left.value_or(-1)};
}

AttentionWithKvCacheOptions options_of(const DecodeProblem& p) {
  return {.causal = p.features.causal,
          .window = p.features.window(),
          .scale = p.features.scale,
          .softcap = p.features.softcap,
          .batch_invariant = p.batch_invariant,
          .max_seqlen_q = most_tokens(p)};
}

// ---- Inputs

struct Inputs {
  HostTensor q, k_cache, v_cache, cache_seqlens;
  std::optional<HostTensor> block_table, cu_seqlens_q, q_descale, k_descale, v_descale, sinks;
  std::optional<ExpectedAttention> expected;
};

HostTensor random_tensor(DType dtype, const Lengths& shape, std::uint64_t seed) {
  if (dtype != DType::e4m3) {
    HostTensor tensor(dtype, shape);
    reference::fill_normal(tensor.view(), seed);
    return tensor;
  }
  const HostTensor values = random_tensor(DType::fp32, shape, seed);
  HostTensor tensor(DType::e4m3, shape);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(tensor.bytes()); ++i) {
    reference::store(tensor.view(), i, reference::round_to_e4m3(reference::load(values.view(), i)));
  }
  return tensor;
}

HostTensor scalar(double value) {
  HostTensor tensor(DType::fp32, {1});
  reference::store(tensor.view(), 0, value);
  return tensor;
}

// The pages of each sequence, in random order; -1 beyond its length.
HostTensor random_block_table(const DecodeProblem& p) {
  const Lengths counts = page_counts(p);
  Lengths pages(static_cast<std::size_t>(total(p, counts)));
  std::iota(pages.begin(), pages.end(), std::int64_t{0});
  std::ranges::shuffle(pages, std::mt19937_64(p.seed));
  const std::int64_t columns = std::ranges::max(counts);
  HostTensor table(DType::int32, {p.batch, columns});
  reference::fill_constant(table.view(), -1);
  auto page = pages.begin();
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < of_sequence(counts, b); ++i) {
      reference::store(table.view(), b * columns + i, static_cast<double>(*page++));
    }
  }
  return table;
}

Inputs make_inputs(const DecodeProblem& p) {
  const Lengths rows = cache_rows(p);
  Inputs inputs{.q = random_tensor(p.dtype, query_shape(p, p.head_dim), 3 * p.seed),
                .k_cache = random_tensor(p.cache_dtype, {rows[0], rows[1], p.kv_heads, p.head_dim},
                                         3 * p.seed + 1),
                .v_cache = random_tensor(p.cache_dtype, {rows[0], rows[1], p.kv_heads, p.value_dim},
                                         3 * p.seed + 2),
                .cache_seqlens = HostTensor(DType::int32, {p.batch}),
                .block_table = {},
                .cu_seqlens_q = {},
                .q_descale = {},
                .k_descale = {},
                .v_descale = {},
                .sinks = {},
                .expected = {}};
  for (std::int64_t b = 0; b < p.batch; ++b) {
    reference::store(inputs.cache_seqlens.view(), b,
                     static_cast<double>(of_sequence(p.kv_lens, b)));
  }
  if (p.page_size != 0) {
    inputs.block_table = random_block_table(p);
  }
  if (is_packed(p)) {
    inputs.cu_seqlens_q.emplace(DType::int32, Lengths{p.batch + 1});
    std::int64_t end = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      end += of_sequence(p.q_lens, b);
      reference::store(inputs.cu_seqlens_q->view(), b + 1, static_cast<double>(end));
    }
  }
  if (p.dtype == DType::e4m3) {
    inputs.q_descale = scalar(kDescaleOfQ);
  }
  if (is_e4m3(p)) {
    inputs.k_descale = scalar(kDescaleOfK);
    inputs.v_descale = scalar(kDescaleOfV);
  }
  if (p.features.sinks) {
    inputs.sinks = random_tensor(DType::fp32, {p.heads}, 3 * p.seed + 3);
  }
  return inputs;
}

// All inputs, by a view of each; o is left out.
template <typename ViewOf>
AttentionWithKvCacheTensors tensors_of(Inputs& inputs, ViewOf&& view_of) {
  AttentionWithKvCacheTensors tensors{.q = view_of(inputs.q),
                                      .k_cache = view_of(inputs.k_cache),
                                      .v_cache = view_of(inputs.v_cache),
                                      .o = {},
                                      .cache_seqlens = view_of(inputs.cache_seqlens)};
  const auto set = [&](auto& target, std::optional<HostTensor>& source) {
    if (source) {
      target = view_of(*source);
    }
  };
  set(tensors.block_table, inputs.block_table);
  set(tensors.cu_seqlens_q, inputs.cu_seqlens_q);
  set(tensors.q_descale, inputs.q_descale);
  set(tensors.k_descale, inputs.k_descale);
  set(tensors.v_descale, inputs.v_descale);
  set(tensors.sinks, inputs.sinks);
  return tensors;
}

// ---- Tensors

class Tensors final : public CaseTensors {
 public:
  Tensors(const DecodeProblem& problem, Inputs& inputs, Machine& machine)
      : problem_(problem),
        inputs_(inputs),
        memory_(machine),
        o_(memory_.output(output_dtype(problem), query_shape(problem, problem.value_dim))),
        lse_(memory_.output(DType::fp32, lse_shape(problem))),
        tensors_(tensors_of(inputs, [&](HostTensor& tensor) { return memory_.upload(tensor); })) {
    tensors_.o = o_.view;
  }

  // Without LSE.
  Launch launch(const KernelInfo& kernel) override { return launch(kernel, tensors_); }

  // With LSE.
  CheckResult check(const KernelInfo& kernel) override {
    AttentionWithKvCacheTensors with_lse = tensors_;
    with_lse.lse = lse_.view;
    memory_.run(launch(kernel, with_lse), {&o_, &lse_});
    return check_attention(o_, lse_, expected());
  }

 private:
  Launch launch(const KernelInfo& kernel, const AttentionWithKvCacheTensors& tensors) {
    AttentionWithKvCacheOptions options = options_of(problem_);
    options.kernel = kernel.name;
    const Workspace workspace =
        memory_.workspace(attention_with_kvcache_workspace_bytes(tensors, options));
    return [tensors, options, workspace](Stream stream) {
      attention_with_kvcache(tensors, options, workspace, stream);
    };
  }

  // Takes long at the first call of a case.
  const ExpectedAttention& expected() {
    if (!inputs_.expected) {
      const AttentionWithKvCacheTensors tensors =
          tensors_of(inputs_, [](HostTensor& tensor) { return tensor.view(); });
      inputs_.expected =
          expect_attention(output_dtype(problem_), [&](reference::Rounding rounding) {
            return reference::attention_with_kvcache(tensors, options_of(problem_), rounding);
          });
    }
    return *inputs_.expected;
  }

  const DecodeProblem& problem_;
  Inputs& inputs_;
  DeviceMemory memory_;
  Output o_, lse_;
  AttentionWithKvCacheTensors tensors_;
};

// ---- The case

class DecodeCase final : public CaseOf<AttentionWithKvCache> {
 public:
  explicit DecodeCase(const DecodeProblem& problem) : problem_(problem) {}

  std::string_view operation() const override { return AttentionWithKvCache::kName; }

  Json to_json() const override {
    const DecodeProblem& p = problem_;
    Json object = {{"dtype", name(p.dtype)},
                   {"batch", p.batch},
                   {"q_len", q_len(p)},
                   {"kv_len", most_keys(p)},
                   {"heads", p.heads},
                   {"kv_heads", p.kv_heads},
                   {"head_dim", p.head_dim},
                   {"v_dim", p.value_dim},
                   {"causal", p.features.causal},
                   {"cache_dtype", name(p.cache_dtype)},
                   {"page_size", p.page_size}};
    if (is_packed(p)) {
      object["q_lens"] = p.q_lens;
    }
    if (p.kv_lens.size() > 1) {
      object["kv_lens"] = p.kv_lens;
    }
    add_features(p.features, object);
    if (p.batch_invariant) {
      object["batch_invariant"] = true;
    }
    return object;
  }

  // "bf16 b4 q1 kv4096 h32/8 d128 causal", "bf16 b2 q513 kv8192 h32/8 d192/128 e4m3 pages of 16
  // ..."
  std::string label() const override {
    const DecodeProblem& p = problem_;
    std::string text = fmt::format("{} b{} q{} kv{} h{}/{} d{}", name(p.dtype), p.batch, q_len(p),
                                   most_keys(p), p.heads, p.kv_heads, p.head_dim);
    text += p.head_dim == p.value_dim ? "" : fmt::format("/{}", p.value_dim);
    text += is_e4m3(p) ? " e4m3" : "";
    text += p.page_size == 0 ? "" : fmt::format(" pages of {}", p.page_size);
    return text + " " + feature_label(p.features) + (p.batch_invariant ? " batch-invariant" : "");
  }

  std::string arguments() const override {
    const DecodeProblem& p = problem_;
    return fmt::format(
        "decode --dtype {} --cache-dtype {} --batch {} --seqlen {} --kv-seqlen {} --heads {} "
        "--kv-heads {} --headdim {} --v-headdim {} --page-size {} {} --{}batch-invariant --seed {}",
        name(p.dtype), name(p.cache_dtype), p.batch, fmt::join(p.q_lens, ","),
        fmt::join(p.kv_lens, ","), p.heads, p.kv_heads, p.head_dim, p.value_dim, p.page_size,
        feature_arguments(p.features), p.batch_invariant ? "" : "no-", p.seed);
  }

  // 2 H (D + Dv) for each pair of a query and a key.
  double flops() const override {
    const double pairs = total_of(problem_, [this](std::int64_t q_len, std::int64_t kv_len) {
      return attention_pairs(q_len, kv_len, problem_.features);
    });
    return 2.0 * static_cast<double>(problem_.heads) * pairs * columns();
  }

  // Those of q, o, and the keys that are seen and their values.
  double bytes() const override {
    const DecodeProblem& p = problem_;
    const Window window = p.features.window();
    const double keys = total_of(p, [&](std::int64_t new_tokens, std::int64_t kv_len) {
      const std::int64_t left = std::min(window.left.value_or(kv_len), kv_len);
      return static_cast<double>(std::min(kv_len, left + new_tokens));
    });
    const double of_keys =
        keys * static_cast<double>(p.kv_heads) * static_cast<double>(size_bytes(p.cache_dtype));
    const double rows = static_cast<double>(total(p, p.q_lens)) * static_cast<double>(p.heads);
    const std::int64_t of_row =
        p.head_dim * static_cast<std::int64_t>(size_bytes(p.dtype)) +
        p.value_dim * static_cast<std::int64_t>(size_bytes(output_dtype(p)));
    return of_keys * columns() + rows * static_cast<double>(of_row);
  }

  std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const override {
    return can_run(*find_kernel<AttentionWithKvCache>(kernel.name), constraints_of(problem_),
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
  double columns() const { return static_cast<double>(problem_.head_dim + problem_.value_dim); }

  // Of the caches, which hold more rows than are keys, and their copies on the machine. Those in
  // E4M3 are made of FP32 numbers.
  double host_bytes() const {
    const Lengths rows = cache_rows(problem_);
    const double elements = static_cast<double>(rows[0]) * static_cast<double>(rows[1]) *
                            static_cast<double>(problem_.kv_heads) * columns();
    const double of_element = 2.0 * static_cast<double>(size_bytes(problem_.cache_dtype));
    return elements * (of_element + (is_e4m3(problem_) ? size_bytes(DType::fp32) : 0.0));
  }

  DecodeProblem problem_;
  std::optional<Inputs> inputs_;
};

}  // namespace

std::unique_ptr<Case> make_decode_case(const DecodeProblem& problem) {
  return std::make_unique<DecodeCase>(problem);
}

}  // namespace tilewright::cli
