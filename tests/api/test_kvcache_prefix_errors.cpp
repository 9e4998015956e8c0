// Wrong arguments of prefixes that sequences share.
#include "kvcache_call.hpp"

namespace tilewright::test {
namespace {

TEST(KvCachePrefixes, TheCallThatTheCasesSpoilIsRight) {
  const KvCacheCall call = prefix_call();
  EXPECT_NO_THROW(attention_with_kvcache(call.tensors, call.options));
  EXPECT_FALSE(call.outputs_untouched());
}

class BadPrefix : public testing::TestWithParam<BadKvCacheCall> {};

TEST_P(BadPrefix, IsRefused) { expect_refused(GetParam(), prefix_call()); }

INSTANTIATE_TEST_SUITE_P(
    All, BadPrefix,
    testing::Values(
        BadKvCacheCall{"groups_alone",
                       [](KvCacheCall& c) { c.tensors.prefix_seqlens.reset(); },
                       "prefix_seqlens",
                       {"absent", "must be given where prefix_groups is"}},
        BadKvCacheCall{"seqlens_alone",
                       [](KvCacheCall& c) { c.tensors.prefix_groups.reset(); },
                       "prefix_groups",
                       {"absent", "must be given where prefix_seqlens is"}},
        BadKvCacheCall{"groups_dtype",
                       [](KvCacheCall& c) { c.tensors.prefix_groups->dtype = DType::int64; },
                       "prefix_groups",
                       {"int64", "must be int32"}},
        BadKvCacheCall{"seqlens_dtype",
                       [](KvCacheCall& c) { c.tensors.prefix_seqlens->dtype = DType::fp32; },
                       "prefix_seqlens",
                       {"fp32", "must be int32"}},
        BadKvCacheCall{"groups_rank",
                       [](KvCacheCall& c) { c.tensors.prefix_groups->rank = 2; },
                       "prefix_groups",
                       {"rank 2", "rank 1 (groups + 1)"}},
        BadKvCacheCall{"seqlens_rank",
                       [](KvCacheCall& c) { c.tensors.prefix_seqlens->rank = 2; },
                       "prefix_seqlens",
                       {"rank 2", "rank 1 (groups)"}},
        BadKvCacheCall{"no_groups",
                       [](KvCacheCall& c) { c.tensors.prefix_groups->shape[0] = 1; },
                       "prefix_groups",
                       {"1 element", "at least 2"}},
        BadKvCacheCall{"seqlens_size",
                       [](KvCacheCall& c) { c.tensors.prefix_seqlens->shape[0] = 1; },
                       "prefix_seqlens",
                       {"groups is 1", "prefix_groups' 2"}},
        BadKvCacheCall{"groups_elsewhere",
                       [](KvCacheCall& c) {
                         c.tensors.prefix_groups->device = {DeviceKind::cuda, 0};
                       },
                       "prefix_groups",
                       {"cuda:0", "must be on cpu like q"}},
        BadKvCacheCall{"groups_not_contiguous",
                       [](KvCacheCall& c) { c.tensors.prefix_groups->stride[0] = 2; },
                       "prefix_groups",
                       {"stride 2", "contiguous"}},
        BadKvCacheCall{"misaligned_seqlens",
                       [](KvCacheCall& c) { misplace(*c.tensors.prefix_seqlens, 2); },
                       "prefix_seqlens",
                       {"aligned to 4"}},
        BadKvCacheCall{"null_groups",
                       [](KvCacheCall& c) { c.tensors.prefix_groups->data = nullptr; },
                       "prefix_groups",
                       {"null"}},
        BadKvCacheCall{
            "groups_in_the_cache",
            [](KvCacheCall& c) { c.tensors.prefix_groups->data = c.tensors.v_cache.data; },
            "v_cache",
            {"shares memory with prefix_groups"}},
        BadKvCacheCall{"o_in_the_seqlens",
                       [](KvCacheCall& c) { c.tensors.prefix_seqlens->data = c.tensors.o.data; },
                       "o",
                       {"shares memory with prefix_seqlens"}},
        BadKvCacheCall{"with_left_padding",
                       [](KvCacheCall& c) {
                         c.tensors.leftpad_k = c.ints({0, 0, 0});
                       },
                       "prefix_groups",
                       {"together with leftpad_k", "must be absent"}},
        BadKvCacheCall{"with_a_window",
                       [](KvCacheCall& c) { c.options.window.left = 5; },
                       "prefix_groups",
                       {"together with a window", "must be absent"}}),
    kCaseName);

class BadPrefixValue : public testing::TestWithParam<BadKvCacheCall> {};

TEST_P(BadPrefixValue, IsRefused) {
  constexpr bool kIsValue = true;
  expect_refused(GetParam(), prefix_call(), kIsValue);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPrefixValue,
    testing::Values(
        BadKvCacheCall{"groups_start",
                       [](KvCacheCall& c) {
                         c.tensors.prefix_groups = c.ints({1, 2, 3});
                       },
                       "prefix_groups",
                       {"starts with 1", "must start with 0"}},
        BadKvCacheCall{"groups_fall",
                       [](KvCacheCall& c) {
                         c.tensors.prefix_groups = c.ints({0, 4, 3});
                       },
                       "prefix_groups",
                       {"falls from 4 to 3 at element 2", "must ascend"}},
        BadKvCacheCall{"groups_end_early",
                       [](KvCacheCall& c) {
                         c.tensors.prefix_groups = c.ints({0, 2, 2});
                       },
                       "prefix_groups",
                       {"ends with 2", "must end with 3, the number of sequences"}},
        BadKvCacheCall{"groups_end_late",
                       [](KvCacheCall& c) {
                         c.tensors.prefix_groups = c.ints({0, 2, 4});
                       },
                       "prefix_groups",
                       {"ends with 4", "must end with 3"}},
        BadKvCacheCall{"negative_prefix",
                       [](KvCacheCall& c) {
                         c.tensors.prefix_seqlens = c.ints({0, -1});
                       },
                       "prefix_seqlens",
                       {"is -1 for group 1", "between 0 and 4"}},
        BadKvCacheCall{"longer_than_a_sequence",
                       [](KvCacheCall& c) {
                         c.tensors.prefix_seqlens = c.ints({9, 0});
                       },
                       "prefix_seqlens",
                       {"is 9 for group 0", "between 0 and 8", "for sequence 1"}},
        BadKvCacheCall{
            "beyond_a_causal_mask",
            [](KvCacheCall& c) {
              c.tensors.k.reset();
              c.tensors.v.reset();
              c.tensors.prefix_seqlens = c.ints({8, 0});
            },
            "prefix_seqlens",
            {"is 8 for group 0", "between 0 and 7", "for sequence 1", "all its tokens see"}},
        BadKvCacheCall{"in_a_tree",
                       [](KvCacheCall& c) {
                         c.tensors.k.reset();
                         c.tensors.v.reset();
                         c.options.causal = false;
                         c.tensors.tree_mask = c.input(DType::int64, {3, 2});
                       },
                       "prefix_seqlens",
                       {"is 7 for group 0", "between 0 and 6"}},
        BadKvCacheCall{"page_of_a_suffix",
                       [](KvCacheCall& c) {
                         c.tensors.block_table = c.ints({7, 2, 0, -1, 8, 3, 4, 1, -1}, 3);
                       },
                       "block_table",
                       {"is 8 for sequence 1 at page 1 of 3", "between 0 and 7"}},
        BadKvCacheCall{"page_of_the_first_sequence",
                       [](KvCacheCall& c) {
                         c.tensors.block_table = c.ints({-1, 2, 0, -1, 5, 3, 4, 1, -1}, 3);
                       },
                       "block_table",
                       {"is -1 for sequence 0 at page 0 of 3"}}),
    kCaseName);

// Without a causal mask all tokens see all keys.
TEST(KvCachePrefixes, AllCachedKeysMayBeShared) {
  KvCacheCall call = prefix_call();
  call.tensors.k.reset();
  call.tensors.v.reset();
  call.options.causal = false;
  call.tensors.prefix_seqlens = call.ints({8, 4});
  EXPECT_NO_THROW(attention_with_kvcache(call.tensors, call.options));
}

// The lengths of a group without sequences may be anything.
TEST(KvCachePrefixes, GroupsMayBeEmpty) {
  KvCacheCall call = prefix_call();
  call.tensors.prefix_groups = call.ints({0, 2, 2, 3});
  call.tensors.prefix_seqlens = call.ints({7, 1 << 20, 4});
  EXPECT_NO_THROW(attention_with_kvcache(call.tensors, call.options));
}

}  // namespace
}  // namespace tilewright::test
