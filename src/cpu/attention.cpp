// Attention on the CPU, by the tiles of attention_tile.hpp.
#include "cpu/attention_tile.hpp"
#include "cpu/cpu_attention.hpp"
#include "cpu/whole_sequence.hpp"

namespace tilewright::cpu {
namespace {

// Keys and values of a tensor's batch entry, or of a part of a packed one.
template <typename T>
class WholeKeys {
 public:
  using Params = AttentionParams;
  using Output = T;

  static Sequence sequence_of(const AttentionParams& p, int batch) {
    return whole_sequence_of(p, batch);
  }

  TILEWRIGHT_INLINE WholeKeys(const AttentionParams& p, const Sequence& sequence, int head)
      : p_(p), sequence_(sequence), head_(head), kv_head_(head / (p.heads / p.kv_heads)) {}

  TILEWRIGHT_INLINE StridedRows<T> q_rows(int row0) const {
    return query_rows<T>(p_, sequence_, head_, row0);
  }

  TILEWRIGHT_INLINE StridedRows<T> k_rows(int key0, int) const {
    return rows_from(key0, p_.k, p_.k_stride);
  }
  TILEWRIGHT_INLINE StridedRows<T> v_rows(int key0, int) const {
    return rows_from(key0, p_.v, p_.v_stride);
  }

  TILEWRIGHT_INLINE void hide_scores(int, int, float*, int, int) const {}
  TILEWRIGHT_INLINE void hide_values(int, int, float*, int) const {}

 private:
  TILEWRIGHT_INLINE StridedRows<T> rows_from(int key0, const void* data,
                                             const OuterStrides& stride) const {
    return {.first = static_cast<const T*>(data) +
                     stride.offset(sequence_.batch, sequence_.first_key + key0, kv_head_),
            .stride = stride.seq};
  }

  const AttentionParams& p_;
  const Sequence& sequence_;
  int head_;
  int kv_head_;
};

}  // namespace

void attention(const AttentionParams& p, Stream) {
  switch (p.dtype) {
    case DType::fp32:
      return attend_all<WholeKeys<float>>(p, nullptr);
    case DType::fp16:
      return attend_all<WholeKeys<Fp16>>(p, nullptr);
    case DType::bf16:
      return attend_all<WholeKeys<Bf16>>(p, nullptr);
    default:  // refused by the registry
      return;
  }
}

}  // namespace tilewright::cpu
