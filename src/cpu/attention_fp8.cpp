// Attention of E4M3 rows with descales on the CPU, by the tiles of attention_tile.hpp. Rows become
// FP32 when they are packed: a byte's value times its descale.
#include <array>

#include "cpu/attention_tile.hpp"
#include "cpu/cpu_attention.hpp"
#include "cpu/whole_sequence.hpp"

namespace tilewright::cpu {
namespace {

using Params = AttentionFp8Params;

// Up to kLargeBr rows, each with its descale.
struct DescaledRows {
  const E4m3* first;
  std::int64_t row_stride;
  std::int64_t dim_stride;
  std::array<float, kLargeBr> descale;

  TILEWRIGHT_INLINE float operator()(int i, int d) const {
    return descale[static_cast<std::size_t>(i)] * to_float(first[i * row_stride + d * dim_stride]);
  }
};

static_assert(kBc <= kLargeBr);

// Queries, keys and values of a batch entry, or of a part of a packed one.
template <typename T>
class Fp8Keys {
 public:
  using Params = AttentionFp8Params;
  using Output = T;

  static Sequence sequence_of(const Params& p, int batch) { return whole_sequence_of(p, batch); }

  Fp8Keys(const Params& p, const Sequence& sequence, int head)
      : p_(p), s_(sequence), head_(head), kv_head_(head / (p.heads / p.kv_heads)) {}

  DescaledRows q_rows(int row0) const {
    return {.first = at(p_.q, p_.q_stride, s_.first_query + row0, head_),
            .row_stride = p_.q_stride.seq,
            .dim_stride = 1,
            .descale = descales_of(p_.q_descale, p_.packed_q.cu_seqlens, head_, row0,
                                   std::min(kLargeBr, s_.q_len - row0))};
  }

  DescaledRows k_rows(int key0, int count) const {
    return keys_from(s_.first_key, key0, count, p_.k, p_.k_stride, 1, p_.k_descale);
  }
  DescaledRows v_rows(int key0, int count) const {
    const int first =
        p_.is_v_transposed ? first_column(p_.kv_lengths.cu_seqlens, s_.batch) : s_.first_key;
    return keys_from(first, key0, count, p_.v, p_.v_stride, p_.v_dim_stride, p_.v_descale);
  }

  TILEWRIGHT_INLINE void hide_scores(int, int, float*, int, int) const {}
  TILEWRIGHT_INLINE void hide_values(int, int, float*, int) const {}

 private:
  const E4m3* at(const void* data, const OuterStrides& stride, int row, int head) const {
    return static_cast<const E4m3*>(data) + stride.offset(s_.batch, row, head);
  }

  // Keys [key0, key0 + count) of the sequence, whose first one is row `first` of the tensor.
  DescaledRows keys_from(int first, int key0, int count, const void* data,
                         const OuterStrides& stride, std::int64_t dim_stride,
                         const Fp8Descales& descales) const {
    return {.first = at(data, stride, first + key0, kv_head_),
            .row_stride = stride.seq,
            .dim_stride = dim_stride,
            .descale = descales_of(descales, p_.kv_lengths.cu_seqlens, kv_head_, key0, count)};
  }

  // Those of rows [row0, row0 + count) of the sequence.
  std::array<float, kLargeBr> descales_of(const Fp8Descales& descales, const int* cu_seqlens,
                                          int head, int row0, int count) const {
    std::array<float, kLargeBr> all;
    all.fill(1.0f);
    if (descales.data == nullptr) {
      return all;
    }
    const bool has_blocks = p_.descale_rows > 0;
    const int first = has_blocks ? first_descale_block(cu_seqlens, s_.batch, p_.descale_rows) : 0;
    const float* const data = descales.data + descales.offset(s_.batch, first, head);
    for (int i = 0; i < count; ++i) {
      const int block = has_blocks ? (row0 + i) / p_.descale_rows : 0;
      all[static_cast<std::size_t>(i)] = data[block * descales.stride.seq];
    }
    return all;
  }

  const Params& p_;
  const Sequence& s_;
  int head_;
  int kv_head_;
};

}  // namespace

void attention_fp8(const Params& p, Stream) {
  if (p.dtype == DType::fp16) {
    attend_all<Fp8Keys<Fp16>>(p, nullptr);
  } else {  // un-normalised results are FP32 whatever the type
    attend_all<Fp8Keys<Bf16>>(p, nullptr);
  }
}

}  // namespace tilewright::cpu
