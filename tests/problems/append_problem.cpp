#include "problems/append_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>

#include "problems/inputs.hpp"
#include "problems/problem.hpp"
#include "reference/append_kv.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kPagesOfSequence = 4;
constexpr std::int64_t kSparePages = 3;
constexpr std::int64_t kPadding = 3;  // rows beyond the last sequence
constexpr std::int64_t kPositions = 300;

// Makes the tensors of one problem.
class AppendMaker {
 public:
  explicit AppendMaker(const AppendProblem& problem) : p_(problem), random_(problem.seed) {}

  AppendHostSet make() {
    choose_lengths();
    AppendHostSet set{.k = rows(p_.kv_heads, p_.head_dim),
                      .v = rows(p_.kv_heads, p_.value_dim),
                      .k_cache = cache(p_.head_dim)};
    if (p_.layout != AppendLayout::interleaved) {
      set.v_cache = cache(p_.value_dim);
    }
    fill(set.k);
    fill(set.v);
    place(set);
    rotate(set);
    scale(set);
    return set;
  }

 private:
  std::int64_t pick(std::int64_t count) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(count));
  }

  std::int64_t page_size() const {
    return p_.is_paged ? p_.page_size : kPagesOfSequence * p_.page_size;
  }
  std::int64_t capacity() const { return kPagesOfSequence * p_.page_size; }
  // With spare entries, where it is said which of them the sequences have.
  std::int64_t pages() const {
    if (p_.is_paged) {
      return p_.sequences * kPagesOfSequence + kSparePages;
    }
    return p_.sequences + (has_batch_idx() ? kSparePages : 0);
  }
  bool has_batch_idx() const {
    return p_.by != AppendBy::slots && !p_.is_paged && p_.seed % 2 == 0;
  }

  void choose_lengths() {
    for (std::int64_t b = 0; b < p_.sequences; ++b) {
      counts_.push_back(p_.by == AppendBy::packed ? pick(p_.tokens + 1) : p_.tokens);
      lengths_.push_back(pick(capacity() - p_.tokens + 1));
    }
  }

  std::int64_t tokens() const {
    const std::int64_t all = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
    return p_.by == AppendBy::packed ? all + kPadding : all;
  }

  HostTensor rows(std::int64_t heads, std::int64_t dim) const {
    const std::int64_t gap = p_.is_padded ? 16 : 0;
    const std::int64_t row = heads * (dim + gap) + gap;
    if (p_.by == AppendBy::batch) {
      return unwritten(HostTensor(p_.dtype, {p_.sequences, p_.tokens, heads, dim},
                                  {p_.tokens * row + gap, row, dim + gap, 1}));
    }
    return unwritten(HostTensor(p_.dtype, {tokens(), heads, dim}, {row, dim + gap, 1}));
  }

  HostTensor cache(std::int64_t dim) const {
    const DType dtype = p_.scales == AppendScales::none ? p_.dtype : DType::e4m3;
    const std::int64_t gap = p_.is_padded ? 16 : 0;
    const std::int64_t row = dim + gap;
    const std::int64_t page = page_size() * p_.kv_heads * row + gap;
    if (p_.layout == AppendLayout::interleaved) {
      return unwritten(HostTensor(dtype, {pages(), 2, page_size(), p_.kv_heads, dim},
                                  {2 * page, page, p_.kv_heads * row, row, 1}));
    }
    const bool heads_first = p_.layout == AppendLayout::heads_first;
    return unwritten(HostTensor(
        dtype, {pages(), page_size(), p_.kv_heads, dim},
        {page, heads_first ? row : p_.kv_heads * row, heads_first ? page_size() * row : row, 1}));
  }

  // Normal values, of different magnitudes; with specials also zeros, infinities and NaN.
  void fill(HostTensor& tensor) {
    reference::fill_normal(tensor.view(), random_(), 8.0);
    if (p_.has_specials) {
      fill_specials(tensor, random_);
    }
  }

  void place(AppendHostSet& set) {
    if (p_.by == AppendBy::slots) {
      std::vector<std::int64_t> slots = shuffled(pages() * page_size(), random_);
      slots.resize(static_cast<std::size_t>(tokens()));
      for (std::int64_t& slot : slots) {
        slot = p_.has_specials && pick(4) == 0 ? -1 : slot;
      }
      set.slot_mapping = integers(DType::int64, slots);
      return;
    }
    set.cache_seqlens = integers(DType::int32, lengths_);
    if (p_.by == AppendBy::packed) {
      std::vector<std::int64_t> starts = {0};
      for (const std::int64_t count : counts_) {
        starts.push_back(starts.back() + count);
      }
      set.cu_seqlens_new = integers(DType::int32, starts);
    }
    if (p_.is_paged) {
      const std::vector<std::int64_t> pages_in_turn = shuffled(pages(), random_);
      set.block_table = unwritten(HostTensor(DType::int32, {p_.sequences, kPagesOfSequence},
                                             {kPagesOfSequence + (p_.is_padded ? 2 : 0), 1}));
      const TensorView table = set.block_table->view();
      for (std::int64_t i = 0; i < p_.sequences * kPagesOfSequence; ++i) {
        reference::store(table, i / kPagesOfSequence * table.stride[0] + i % kPagesOfSequence,
                         static_cast<double>(pages_in_turn[static_cast<std::size_t>(i)]));
      }
    } else if (has_batch_idx()) {
      std::vector<std::int64_t> entries = shuffled(pages(), random_);
      entries.resize(static_cast<std::size_t>(p_.sequences));
      set.cache_batch_idx = integers(DType::int32, entries);
    }
  }

  void rotate(AppendHostSet& set) {
    if (p_.rotary_dims == 0) {
      return;
    }
    const DType dtype = p_.has_half_tables ? p_.dtype : DType::fp32;
    const std::int64_t stride = p_.rotary_dims / 2 + (p_.is_padded ? 3 : 0);
    for (auto* const table : {&set.rotary_cos, &set.rotary_sin}) {
      *table = HostTensor(dtype, {kPositions, p_.rotary_dims / 2}, {stride, 1});
      reference::fill_normal((*table)->view(), random_());
    }
    if (p_.has_positions || p_.by == AppendBy::slots) {
      std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens()));
      std::ranges::generate(positions, [&] { return pick(kPositions); });
      set.positions = integers(DType::int64, positions);
      if (p_.by == AppendBy::batch) {
        HostTensor batched(DType::int64, {p_.sequences, p_.tokens});
        std::memcpy(batched.data(), set.positions->data(), batched.bytes());
        set.positions = batched;
      }
    }
    if (p_.heads > 0) {
      set.q = rows(p_.heads, p_.head_dim);
      set.q_out = *set.q;
      fill(*set.q);
    }
  }

  void scale(AppendHostSet& set) {
    const auto given = [&](HostTensor descales) {
      reference::fill_normal(descales.view(), random_(), 0.05);
      auto* const values = reinterpret_cast<float*>(descales.data());
      for (std::size_t i = 0; i < descales.bytes() / 4; ++i) {
        values[i] = std::max(values[i] < 0 ? -values[i] : values[i], 1e-3f);
      }
      return descales;
    };
    for (auto* const descale : {&set.k_descale, &set.v_descale}) {
      if (p_.scales == AppendScales::tensor) {
        *descale = given(HostTensor(DType::fp32, {1}));
      } else if (p_.scales == AppendScales::sequence) {
        *descale = given(HostTensor(DType::fp32, {p_.sequences, p_.kv_heads},
                                    {1, p_.sequences + (p_.is_padded ? 1 : 0)}));
      }
    }
    if (p_.scales == AppendScales::token) {
      for (auto* const descale : {&set.computed_k_descale, &set.computed_v_descale}) {
        *descale = unwritten(HostTensor(DType::fp32, {pages(), page_size(), p_.kv_heads},
                                        {page_size() * p_.kv_heads + 1, 1, page_size()}));
      }
    }
  }

  AppendProblem p_;
  std::mt19937_64 random_;
  std::vector<std::int64_t> counts_;   // of new tokens, of each sequence
  std::vector<std::int64_t> lengths_;  // keys that are there
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const AppendProblem& p) {
  return out << "by " << static_cast<int>(p.by) << (p.is_paged ? " paged" : " contiguous")
             << " layout " << static_cast<int>(p.layout) << " " << p.sequences << "x" << p.tokens
             << " heads " << p.heads << "/" << p.kv_heads << " dims " << p.head_dim << "/"
             << p.value_dim << " rotary " << p.rotary_dims
             << (p.is_interleaved ? " interleaved" : "") << (p.has_half_tables ? " half" : "")
             << (p.has_positions ? " positions" : "") << " " << name(p.dtype) << " scales "
             << static_cast<int>(p.scales) << (p.has_specials ? " specials" : "")
             << (p.is_padded ? " padded" : "") << " seed " << p.seed;
}

AppendHostSet make_tensors(const AppendProblem& problem) { return AppendMaker(problem).make(); }

void expect_right(const AppendProblem& problem, AppendHostSet& result) {
  AppendHostSet expected = make_tensors(problem);
  reference::append_kv(expected.views(), options_of(problem));
  const auto actual = result.outputs();
  const auto right = expected.outputs();
  for (std::size_t i = 0; i < right.size(); ++i) {
    EXPECT_TRUE(same_bytes(*actual[i], *right[i])) << "output " << i;
  }
}

std::vector<AppendProblem> append_problems(DType dtype) {
  std::vector<AppendProblem> problems;
  const auto add = [&](AppendProblem problem) {
    problem.dtype = dtype;
    problem.seed = problems.size() + 1;
    problems.push_back(problem);
    problem.has_specials = true;
    problem.is_padded = true;
    problem.seed = problems.size() + 1;
    problems.push_back(problem);
  };
  for (const AppendBy by : {AppendBy::slots, AppendBy::batch, AppendBy::packed}) {
    for (const bool is_paged : {true, false}) {
      for (const AppendLayout layout :
           {AppendLayout::tokens_first, AppendLayout::heads_first, AppendLayout::interleaved}) {
        for (const AppendScales scales : {AppendScales::none, AppendScales::tensor,
                                          AppendScales::sequence, AppendScales::token}) {
          if (by == AppendBy::slots && scales == AppendScales::sequence) {
            continue;
          }
          AppendProblem problem{.by = by, .is_paged = is_paged, .layout = layout, .scales = scales};
          add(problem);
          problem.heads = 5;
          problem.rotary_dims = 32;
          add(problem);
        }
      }
    }
  }
  for (const auto& [head_dim, value_dim, rotary_dims] : {std::array<std::int64_t, 3>{64, 64, 64},
                                                         {128, 128, 128},
                                                         {192, 128, 64},
                                                         {80, 80, 20},
                                                         {96, 64, 24},
                                                         {576, 512, 64},
                                                         {8, 16, 2},
                                                         {256, 256, 250}}) {
    for (const bool is_interleaved : {false, true}) {
      for (const bool has_half_tables : {false, true}) {
        for (const AppendScales scales : {AppendScales::none, AppendScales::token}) {
          add({.by = AppendBy::packed,
               .heads = 3,
               .kv_heads = 1,
               .head_dim = head_dim,
               .value_dim = value_dim,
               .rotary_dims = rotary_dims,
               .is_interleaved = is_interleaved,
               .has_half_tables = has_half_tables,
               .has_positions = head_dim == 128,
               .scales = scales});
        }
      }
    }
  }
  add({.by = AppendBy::batch, .heads = 1, .rotary_dims = 64, .has_positions = true});
  add({.by = AppendBy::batch, .sequences = 1, .tokens = 1, .kv_heads = 1, .page_size = 1});
  add({.by = AppendBy::packed, .sequences = 70, .tokens = 3, .page_size = 4});
  return problems;
}

}  // namespace tilewright::test
