// Problems of attention on FP8: those of attention, whose q, k and v are quantised.
#pragma once

#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include "problems/problem.hpp"
#include "tilewright/attention_fp8.hpp"
#include "tilewright/attention_fp8_kernels.hpp"

namespace tilewright::test {

// What a descale is of. In a problem of `heads` or `blocks`, some tensors have no descale, or one.
enum class DescaleForm { none, tensor, heads, blocks };

struct Fp8Problem {
  Problem attention;  // dtype: of o
  DescaleForm descales = DescaleForm::heads;
  int descale_rows = 0;  // of blocks
  bool v_transposed = false;
  bool uneven_values = false;  // of V's blocks, every other has a descale 2^-40 times as large
};

std::ostream& operator<<(std::ostream& out, const Fp8Problem& problem);

AttentionFp8Options options_of(const Fp8Problem& problem, std::string_view kernel);

// What can_run() wants to know of it.
AttentionFp8Problem constraints_of(const Fp8Problem& problem);

// A problem's tensors, in host or device memory. v is there also where v_transposed takes its place
// in the call.
template <typename Tensor>
struct Fp8Set : TensorSet<Tensor> {
  std::optional<Tensor> v_transposed, q_descale, k_descale, v_descale;

  AttentionFp8Tensors views() {
    const AttentionTensors t = TensorSet<Tensor>::views();
    AttentionFp8Tensors tensors{.q = t.q,
                                .k = t.k,
                                .o = t.o,
                                .lse = t.lse,
                                .sinks = t.sinks,
                                .cu_seqlens_q = t.cu_seqlens_q,
                                .cu_seqlens_k = t.cu_seqlens_k,
                                .seqused_k = t.seqused_k,
                                .row_max = t.row_max,
                                .row_sum = t.row_sum};
    if (v_transposed) {
      tensors.v_transposed = v_transposed->view();
    } else {
      tensors.v = t.v;
    }
    const auto set = [](auto& target, std::optional<Tensor>& source) {
      if (source) {
        target = source->view();
      }
    };
    set(tensors.q_descale, q_descale);
    set(tensors.k_descale, k_descale);
    set(tensors.v_descale, v_descale);
    return tensors;
  }
};

using Fp8HostSet = Fp8Set<reference::HostTensor>;

// Quantised inputs of the attention problem, and its outputs. What it has of NaN and infinities
// that no result may depend on is NaN, and so are descales of no row and columns of no key.
Fp8HostSet make_tensors(const Fp8Problem& problem);

// Each of the problems with descales of one form or another, with v transposed or not, as its
// place in the list says. Problems with infinities in q or k, which E4M3 has not, are left out.
std::vector<Fp8Problem> fp8_problems(const std::vector<Problem>& problems);

}  // namespace tilewright::test
