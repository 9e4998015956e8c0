#include "problems/fp8_problem.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "problems/random.hpp"
#include "reference/rotated_row.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr int kNaN = 0x7f;  // of E4M3

// Rows ([B,] N, H, D) of a tensor, one after the other.
struct Rows {
  explicit Rows(const ConstTensorView& t)
      : is_packed(t.rank == 3),
        batch(is_packed ? 1 : t.shape[0]),
        length(t.shape[t.rank - 3]),
        heads(t.shape[t.rank - 2]),
        dim(t.shape[t.rank - 1]) {}

  // Of a tensor with these dimensions.
  std::int64_t offset(const ConstTensorView& t, std::int64_t b, std::int64_t n,
                      std::int64_t h) const {
    return (is_packed ? 0 : b * t.stride[0]) + n * t.stride[t.rank - 3] + h * t.stride[t.rank - 2];
  }

  template <typename F>
  void for_each(F f) const {
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t n = 0; n < length; ++n) {
        for (std::int64_t h = 0; h < heads; ++h) {
          f(b, n, h);
        }
      }
    }
  }

  bool is_packed;
  std::int64_t batch, length, heads, dim;
};

// A row's sequence, its number there, and where the sequence begins. Rows behind the last one have
// none.
struct RowPlace {
  std::int64_t sequence = -1;
  std::int64_t row = 0;
  std::int64_t first = 0;
};

RowPlace place_of(std::int64_t b, std::int64_t n, const std::vector<int>& lengths) {
  if (lengths.empty()) {
    return {b, n, 0};
  }
  std::int64_t first = 0;
  for (std::size_t s = 0; s < lengths.size(); first += lengths[s++]) {
    if (n < first + lengths[s]) {
      return {static_cast<std::int64_t>(s), n - first, first};
    }
  }
  return {};
}

// The descales of one tensor.
class Descales {
 public:
  // Of rows with these lengths, where packed. `group` heads share a descale of a sequence and head.
  Descales(const Fp8Problem& problem, DescaleForm form, const Rows& rows,
           const std::vector<int>& lengths, std::int64_t group, double base, bool is_uneven,
           Random& pick)
      : form_(form), rows_(problem.descale_rows), lengths_(lengths), group_(group), base_(base) {
    const std::int64_t batch = problem.attention.batch;
    switch (form) {
      case DescaleForm::none:
        return;
      case DescaleForm::tensor:
        tensor = HostTensor(DType::fp32, {1});
        break;
      case DescaleForm::heads:
        tensor = HostTensor(DType::fp32, {batch, rows.heads / group}, {1, batch});
        break;
      case DescaleForm::blocks:
        tensor = blocks(rows, batch);
        break;
    }
    auto* const values = reinterpret_cast<float*>(tensor->data());
    for (std::size_t i = 0; i < tensor->bytes() / sizeof(float); ++i) {
      values[i] = form == DescaleForm::blocks ? std::numeric_limits<float>::quiet_NaN()
                                              : random_descale(pick);
    }
    if (form == DescaleForm::blocks) {
      rows.for_each([&](std::int64_t b, std::int64_t n, std::int64_t h) {
        const RowPlace place = place_of(b, n, lengths_);
        if (place.sequence >= 0 && place.row % rows_ == 0) {
          const bool is_small = is_uneven && place.row / rows_ % 2 == 1;
          reference::store(tensor->view(), index_of(b, place, h),
                           random_descale(pick) * (is_small ? 0x1p-40 : 1.0));
        }
      });
    }
  }

  double of(std::int64_t b, std::int64_t n, std::int64_t h) const {
    if (form_ == DescaleForm::none) {
      return 1;
    }
    const RowPlace place = place_of(b, n, lengths_);
    return place.sequence < 0 ? base_ : reference::load(tensor->view(), index_of(b, place, h));
  }

  std::optional<HostTensor> tensor;

 private:
  HostTensor blocks(const Rows& rows, std::int64_t batch) const {
    if (rows.is_packed) {
      const std::int64_t count = rows.length / rows_ + batch;
      return HostTensor(DType::fp32, {rows.heads, count}, {count + 1, 1});
    }
    const std::int64_t count = (rows.length + rows_ - 1) / rows_;
    return HostTensor(DType::fp32, {batch, rows.heads, count}, {rows.heads * count, 1, rows.heads});
  }

  float random_descale(Random& pick) const {
    return static_cast<float>(base_ * (1.0 + static_cast<double>(pick(0, 1000)) / 1000));
  }

  std::int64_t index_of(std::int64_t b, const RowPlace& place, std::int64_t h) const {
    const ConstTensorView t = tensor->view();
    switch (form_) {
      case DescaleForm::heads:
        return place.sequence * t.stride[0] + h / group_ * t.stride[1];
      case DescaleForm::blocks:
        return t.rank == 3
                   ? b * t.stride[0] + h * t.stride[1] + place.row / rows_ * t.stride[2]
                   : h * t.stride[0] +
                         (place.first / rows_ + place.sequence + place.row / rows_) * t.stride[1];
      default:
        return 0;
    }
  }

  DescaleForm form_;
  std::int64_t rows_;
  std::vector<int> lengths_;
  std::int64_t group_;
  double base_;
};

int byte_of(double value, double descale) {
  return std::isfinite(value) ? reference::e4m3_byte(value / descale) : kNaN;
}

double amax_of(const HostTensor& tensor, const Rows& rows) {
  double amax = 0;
  rows.for_each([&](std::int64_t b, std::int64_t n, std::int64_t h) {
    for (std::int64_t d = 0; d < rows.dim; ++d) {
      const double value = reference::load(tensor.view(), rows.offset(tensor.view(), b, n, h) + d);
      amax = std::isfinite(value) ? std::max(amax, std::abs(value)) : amax;
    }
  });
  return amax;
}

// A tensor's rows in E4M3. Gaps between rows grow, so that they are as many bytes.
HostTensor quantized(const HostTensor& from, const Rows& rows, const Descales& descales,
                     MemoryOrder order) {
  const ConstTensorView source = from.view();
  std::vector<std::int64_t> stride(source.stride.begin(), source.stride.begin() + source.rank);
  for (int i = 0; i + 1 < source.rank && order == MemoryOrder::padded_rows; ++i) {
    stride[static_cast<std::size_t>(i)] *= 2;
  }
  HostTensor result(DType::e4m3, {source.shape.begin(), source.shape.begin() + source.rank},
                    stride);
  std::memset(result.data(), kNaN, result.bytes());
  rows.for_each([&](std::int64_t b, std::int64_t n, std::int64_t h) {
    const double descale = descales.of(b, n, h);
    for (std::int64_t d = 0; d < rows.dim; ++d) {
      reference::store(result.view(), rows.offset(result.view(), b, n, h) + d,
                       byte_of(reference::load(source, rows.offset(source, b, n, h) + d), descale));
    }
  });
  return result;
}

// Rows of E4M3 as columns, with some more columns of NaN. Rows with these lengths, where packed,
// have the columns of their sequences.
HostTensor transposed(const HostTensor& from, const Rows& rows, const std::vector<int>& lengths,
                      std::int64_t more) {
  const auto sequences = static_cast<std::int64_t>(lengths.size());
  const std::int64_t columns =
      16 * (rows.is_packed ? rows.length / 16 + sequences : (rows.length + 15) / 16) + more;
  std::vector<std::int64_t> shape{rows.heads, rows.dim, columns};
  if (!rows.is_packed) {
    shape.insert(shape.begin(), rows.batch);
  }
  HostTensor result(DType::e4m3, shape);
  std::memset(result.data(), kNaN, result.bytes());
  rows.for_each([&](std::int64_t b, std::int64_t n, std::int64_t h) {
    const RowPlace place = place_of(b, n, lengths);
    if (place.sequence < 0) {
      return;
    }
    const std::int64_t column =
        rows.is_packed ? 16 * (place.first / 16 + place.sequence) + place.row : n;
    for (std::int64_t d = 0; d < rows.dim; ++d) {
      reference::store(result.view(), ((b * rows.heads + h) * rows.dim + d) * columns + column,
                       reference::load(from.view(), rows.offset(from.view(), b, n, h) + d));
    }
  });
  return result;
}

// The form of one tensor's descales.
DescaleForm pick_form(DescaleForm form, Random& pick) {
  constexpr int kSome = 5;
  if (form == DescaleForm::heads || form == DescaleForm::blocks) {
    return pick.one_in(kSome) ? DescaleForm::none
                              : (pick.one_in(kSome) ? DescaleForm::tensor : form);
  }
  return form;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Fp8Problem& p) {
  constexpr std::array kForms = {"none", "tensor", "heads", "blocks"};
  return out << p.attention << " descales " << kForms[static_cast<std::size_t>(p.descales)]
             << " descale_rows " << p.descale_rows << " v_transposed " << p.v_transposed
             << " uneven_values " << p.uneven_values;
}

AttentionFp8Options options_of(const Fp8Problem& p, std::string_view kernel) {
  const AttentionOptions options = options_of(p.attention, kernel);
  return {.causal = options.causal,
          .window = options.window,
          .scale = options.scale,
          .softcap = options.softcap,
          .batch_invariant = options.batch_invariant,
          .descale_rows = p.descale_rows,
          .kernel = kernel};
}

AttentionFp8Problem constraints_of(const Fp8Problem& p) {
  AttentionFp8Problem problem{constraints_of(p.attention)};
  problem.v_transposed = p.v_transposed;
  problem.descale_rows = p.descale_rows;
  return problem;
}

Fp8HostSet make_tensors(const Fp8Problem& p) {
  const Problem& attention = p.attention;
  Random pick(attention.seed);
  Fp8HostSet set{make_tensors(attention), std::nullopt, std::nullopt, std::nullopt, std::nullopt};
  const auto quantize = [&](HostTensor& tensor, std::optional<HostTensor>& descale,
                            const std::vector<int>& lengths, std::int64_t group, bool is_uneven) {
    constexpr double kE4m3Max = 448;
    const Rows rows(tensor.view());
    const double base = std::max(amax_of(tensor, rows), 1e-3) / kE4m3Max;
    Descales descales(p, pick_form(p.descales, pick), rows, lengths, group, base, is_uneven, pick);
    tensor = quantized(tensor, rows, descales, attention.order);
    descale = descales.tensor;
  };
  quantize(set.q, set.q_descale, attention.q_lens, attention.heads / attention.kv_heads, false);
  quantize(set.k, set.k_descale, attention.kv_lens, 1, false);
  quantize(set.v, set.v_descale, attention.kv_lens, 1, p.uneven_values);
  if (p.v_transposed) {
    set.v_transposed =
        transposed(set.v, Rows(set.v.view()), attention.kv_lens, pick.one_in(2) ? 16 : 0);
  }
  return set;
}

std::vector<Fp8Problem> fp8_problems(const std::vector<Problem>& problems) {
  constexpr std::array kForms = {DescaleForm::heads, DescaleForm::blocks, DescaleForm::tensor,
                                 DescaleForm::blocks, DescaleForm::none};
  std::vector<Fp8Problem> all;
  for (const Problem& problem : problems) {
    const bool has_infinities = std::ranges::any_of(problem.specials, [](const Special& special) {
      return special.in != Special::In::sinks && std::isinf(special.value);
    });
    if (has_infinities) {
      continue;
    }
    const std::size_t i = all.size();
    const DescaleForm form = kForms[i % kForms.size()];
    all.push_back({.attention = problem,
                   .descales = form,
                   .descale_rows = form == DescaleForm::blocks ? (i % 2 == 0 ? 64 : 128) : 0,
                   .v_transposed = i % 3 == 0});
  }
  return all;
}

}  // namespace tilewright::test
