// Problems of DeepSeek-V4's attention in other forms.
#pragma once

#include <cstddef>
#include <vector>

#include "problems/dsv4_problem.hpp"

namespace tilewright::test {

// A call's request b by itself, in a batch of one, which is not packed. Its tensors are views of
// the call's: outputs go where the call writes them. The request must have new tokens.
Dsv4AttentionTensors alone(const Dsv4Problem& problem, const Dsv4AttentionTensors& tensors,
                           std::size_t b);

// The same call with some of its heads: views of the call's tensors, which are not packed.
Dsv4AttentionTensors of_heads(const Dsv4AttentionTensors& tensors, std::int64_t first,
                              std::int64_t count);

// The same problem with the pages of tables and lists elsewhere in their caches.
Dsv4HostTensors with_moved_pages(const Dsv4Problem& problem, const Dsv4HostTensors& tensors);

// The problem's parts, un-normalised. Each sees some of the keys: lists are cut behind any of their
// entries, ranges at any position, and fresh rows are the last part's. The sink is in none of them.
// The problem has one new token of each request, and its results are not rotated or quantised.
std::vector<Dsv4HostTensors> in_parts(const Dsv4Problem& problem, int parts);

// The problem's tensors, whose results are merged from those of its parts, by merge_states().
Dsv4HostTensors merged(const Dsv4Problem& problem, std::vector<Dsv4HostTensors>& parts);

}  // namespace tilewright::test
