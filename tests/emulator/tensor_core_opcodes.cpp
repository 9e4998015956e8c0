// What the opcodes of mma.sync and wgmma say.
#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "emulator/tensor_core.hpp"

namespace tilewright::emulator {
namespace {

// An opcode's parts between dots.
std::vector<std::string_view> split(std::string_view opcode) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= opcode.size();) {
    const std::size_t end = std::min(opcode.find('.', begin), opcode.size());
    parts.push_back(opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

struct Shape {
  int m = 0;
  int n = 0;
  int k = 0;
};

// "m16n8k16"
std::optional<Shape> parse_shape(std::string_view text) {
  Shape shape;
  for (const auto& [name, value] : {std::pair{'m', &shape.m}, {'n', &shape.n}, {'k', &shape.k}}) {
    if (text.empty() || text.front() != name) {
      return std::nullopt;
    }
    text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (error != std::errc{}) {
      return std::nullopt;
    }
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return text.empty() ? std::optional(shape) : std::nullopt;
}

// "f32", "bf16", "bf16": the formats of D, A and B, if tensor cores take them together.
struct Formats {
  NumberFormat d, a, b;
};

std::optional<Formats> parse_formats(std::string_view d, std::string_view a, std::string_view b) {
  const auto d_format = format_named(d);
  const auto a_format = format_named(a);
  const auto b_format = format_named(b);
  const auto is_operand = [](std::optional<NumberFormat> format) {
    return format && *format >= NumberFormat::tf32 && *format <= NumberFormat::e5m2;
  };
  if (!is_operand(a_format) || !is_operand(b_format) || bits_of(*a_format) != bits_of(*b_format) ||
      (bits_of(*a_format) != 8 && *a_format != *b_format)) {
    return std::nullopt;
  }
  const bool f16_fits = *a_format == NumberFormat::f16 || bits_of(*a_format) == 8;
  if (d_format != NumberFormat::f32 && !(d_format == NumberFormat::f16 && f16_fits)) {
    return std::nullopt;
  }
  return Formats{*d_format, *a_format, *b_format};
}

}  // namespace

std::optional<MmaKind> parse_mma(std::string_view opcode) {
  constexpr std::string_view kPrefix = "mma.sync.aligned.";
  if (!opcode.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const auto parts = split(opcode.substr(kPrefix.size()));
  const std::size_t with_kind = parts.size() == 8 && parts[3] == "kind::f8f6f4" ? 1 : 0;
  if (parts.size() != 7 + with_kind || parts[1] != "row" || parts[2] != "col") {
    return std::nullopt;
  }
  const auto shape = parse_shape(parts[0]);
  const auto formats =
      parse_formats(parts[3 + with_kind], parts[4 + with_kind], parts[5 + with_kind]);
  if (!shape || !formats || shape->m != 16 || shape->n != 8 ||
      parts[3 + with_kind] != parts[6 + with_kind]) {
    return std::nullopt;
  }
  const MmaKind kind{shape->k, formats->a, formats->b, formats->d};
  const int bits = kind.k * bits_of(kind.a);
  return bits == 128 || bits == 256 ? std::optional(kind) : std::nullopt;
}

std::optional<WgmmaKind> parse_wgmma(std::string_view opcode) {
  constexpr std::string_view kPrefix = "wgmma.mma_async.sync.aligned.";
  if (!opcode.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const auto parts = split(opcode.substr(kPrefix.size()));
  if (parts.size() != 4) {
    return std::nullopt;
  }
  const auto shape = parse_shape(parts[0]);
  const auto formats = parse_formats(parts[1], parts[2], parts[3]);
  if (!shape || !formats || shape->m != 64) {
    return std::nullopt;
  }
  const WgmmaKind kind{.n = shape->n, .a = formats->a, .b = formats->b, .d = formats->d};
  const bool has_n = kind.n % 8 == 0 && kind.n >= 8 && kind.n <= kMaxWgmmaColumns;
  return has_n && shape->k == kind.k() ? std::optional(kind) : std::nullopt;
}

}  // namespace tilewright::emulator
