// The test oracle of tilewright::dsv4_attention(), in float64.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/attention.hpp"
#include "tilewright/dsv4_attention.hpp"

namespace tilewright::reference {

// The new tokens of a request, and where their rows begin: in its entry of q, or in packed rows.
struct Dsv4Request {
  std::int64_t entry;  // of q; 0 where q is packed
  std::int64_t first_row;
  std::int64_t tokens;
};

std::int64_t request_count(const Dsv4AttentionTensors& tensors);
Dsv4Request request_of(const Dsv4AttentionTensors& tensors, std::int64_t b);

// The slots of a scope that token i of request b sees, one after the other; none if it is absent.
std::vector<std::int64_t> seen_slots(const Dsv4AttentionTensors& tensors,
                                     const std::optional<Dsv4Scope>& scope, std::int64_t b,
                                     std::int64_t i);

// Computes the problem on host tensors; results are as of attention(), o with inverse RoPE but not
// quantised, and the LSE with or without the sink as the options say.
AttentionResult dsv4_attention(const Dsv4AttentionTensors& tensors,
                               const Dsv4AttentionOptions& options,
                               Rounding rounding = Rounding::exact);

// The scale of a group of E4M3 outputs: 2^ceil(log2(max(amax, 1e-4) / 448)).
double output_scale(double amax);

}  // namespace tilewright::reference
