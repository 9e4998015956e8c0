// Checks of one tensor, which all operations share. Each throws tilewright::Error, which names the
// argument, what it was and what it must be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// The names of a tensor's dimensions.
using DimNames = std::span<const char* const>;

// A text in pieces, which are joined if a check fails: a call that is right builds no string.
using Pieces = std::initializer_list<std::string_view>;

[[noreturn]] void fail(const std::string& argument, const std::string& message);

// The most bytes that may lie from a tensor's first byte to its last.
inline constexpr std::int64_t kMaxSpan_bytes = std::int64_t{1} << 60;

// Checks what holds for every tensor by itself: its rank, sizes of at least 1, its span in memory
// and its pointer. `why` ends the message on a wrong rank.
void check_tensor(const char* argument, const ConstTensorView& tensor, DimNames dims,
                  Pieces why = {});

// `why` ends the message.
void check_dtype(const char* argument, const ConstTensorView& tensor, DType dtype,
                 const char* why = "");

// Checks that the dtype is fp32, fp16 or bf16.
void check_is_float(const char* argument, const ConstTensorView& tensor);

// Checks that a tensor is on `device`, which is that of the argument `like`.
void check_device(const char* argument, const ConstTensorView& tensor, Device device,
                  const char* like);

void check_last_dim_is_contiguous(const char* argument, const ConstTensorView& tensor,
                                  const char* must_be);

void check_same(const char* argument, const char* what, std::int64_t value, Pieces of,
                std::int64_t expected);
inline void check_same(const char* argument, const char* what, std::int64_t value, const char* of,
                       std::int64_t expected) {
  check_same(argument, what, value, {std::string_view(of)}, expected);
}

// Fails if an argument is there, or is not. `where` says why it must not be, or must.
void check_is_absent(const char* argument, bool is_given, Pieces where);
void check_is_given(const char* argument, bool is_given, Pieces where);
template <typename View>
void check_is_absent(const char* argument, const std::optional<View>& tensor, Pieces where) {
  check_is_absent(argument, tensor.has_value(), where);
}
template <typename View>
void check_is_given(const char* argument, const std::optional<View>& tensor, Pieces where) {
  check_is_given(argument, tensor.has_value(), where);
}

// Fails if one of two arguments is given without the other.
void check_both_or_none(const char* first, bool has_first, const char* second, bool has_second);

// Checks that no two elements of an output share an address.
void check_no_overlap(const char* argument, const TensorView& tensor);

void check_is_aligned(const char* argument, const void* data, int alignment_bytes);

// Checks that a tensor starts at a multiple of its elements' size, if it is given.
void check_elements_are_aligned(const char* argument, const std::optional<ConstTensorView>& tensor);

// Checks the alignment of the base address and, on a GPU, of outer strides. A dimension of size 1
// is never stepped over: its stride does not matter.
void check_rows_are_aligned(const char* argument, const ConstTensorView& tensor,
                            int alignment_bytes);

// Checks the workspace of kernel `kernel`.
void check_workspace(Workspace workspace, std::size_t needed_bytes, std::string_view kernel);

}  // namespace tilewright
