#include "fuzz/json_mutator.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace tilewright::fuzz {
namespace {

using namespace std::string_view_literals;

constexpr std::array kValues = {"0"sv,
                                "1"sv,
                                "2"sv,
                                "8"sv,
                                "16"sv,
                                "-1"sv,
                                "-0"sv,
                                "1.5"sv,
                                "1e2"sv,
                                "1e999"sv,
                                "65"sv,
                                "2147483647"sv,
                                "2147483648"sv,
                                "4294967296"sv,
                                "281474976710656"sv,
                                "9223372036854775807"sv,
                                "9223372036854775808"sv,
                                "-9223372036854775808"sv,
                                "18446744073709551615"sv,
                                "18446744073709551616"sv,
                                "null"sv,
                                "true"sv,
                                "false"sv,
                                "[]"sv,
                                "{}"sv,
                                "[0]"sv,
                                "[0,0]"sv,
                                "[1,1,1,1,1,1]"sv,
                                "\"\""sv,
                                "\"U8\""sv,
                                "\"F8_E4M3\""sv,
                                "\"F32\""sv,
                                "\"F16\""sv,
                                "\"BF16\""sv,
                                "\"I64\""sv,
                                "\"F4\""sv,
                                "\"__metadata__\""sv,
                                "\"dtype\""sv,
                                "\"shape\""sv,
                                "\"data_offsets\""sv,
                                "\"case\""sv,
                                "\"impl\""sv,
                                "\"run\""sv,
                                "\"gpu\""sv,
                                "\"impl_version\""sv,
                                "\"l.weight\""sv,
                                "\"l.weight_packed\""sv,
                                "\"l.weight_scale\""sv};

// Of a string: control characters, an escaped one, half a surrogate pair, no UTF-8, C1 controls, a
// reversal of direction.
constexpr std::array kBytes = {
    "\x1b[31m"sv, "\0"sv,      "\n"sv,   "\r\n"sv,        "\x7f"sv,     "\\u001b"sv,
    "\\u009b"sv,  "\\ud800"sv, "\xff"sv, "\xc3"sv,        "\xc2\x9b"sv, "\xe2\x80\xae"sv,
    "\\"sv,       "\""sv,      "{"sv,    "}"sv,           "["sv,        "]"sv,
    ","sv,        ":"sv,       " "sv,    "\xef\xbb\xbf"sv};

// Where a value or a key is: [first, second).
using Piece = std::pair<std::size_t, std::size_t>;

bool is_structure(char c) {
  return std::string_view("[]{},: \n").find(c) != std::string_view::npos;
}

// A string, a number or a word at random; empty where there is none.
Piece scalar(const std::string& text, Random& random) {
  std::size_t begin = random.below(text.size() + 1);
  while (begin < text.size() && is_structure(text[begin])) {
    ++begin;
  }
  std::size_t end = begin;
  while (begin > 0 && !is_structure(text[begin - 1])) {
    --begin;
  }
  while (end < text.size() && !is_structure(text[end])) {
    ++end;
  }
  return {begin, end};
}

// Any bytes, few more often than many.
Piece any_piece(const std::string& text, Random& random) {
  const std::size_t begin = random.below(text.size() + 1);
  const std::size_t most = std::min(text.size() - begin, std::size_t{1} << random.below(10));
  return {begin, begin + random.below(most + 1)};
}

std::string copy_of(const std::string& text, Piece piece) {
  return text.substr(piece.first, piece.second - piece.first);
}

void replace(std::string& text, Piece piece, std::string_view by) {
  text.replace(piece.first, piece.second - piece.first, by);
}

std::string nested(Random& random) {
  const std::size_t depth = random.one_in(8) ? 1000 + random.below(4000) : 1 + random.below(40);
  const bool is_array = random.one_in(2);
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) {
    text += is_array ? "[" : "{\"a\":";
  }
  if (!random.one_in(4)) {
    text += '0';
    text.append(depth, is_array ? ']' : '}');
  }
  return text;
}

}  // namespace

void mutate_json(std::string& text, Random& random) {
  switch (random.below(8)) {
    case 0:
    case 1:
      replace(text, scalar(text, random), random.one_of(kValues));
      break;
    case 2:
      replace(text, scalar(text, random), copy_of(text, scalar(text, random)));
      break;
    case 3:
      replace(text, scalar(text, random), nested(random));
      break;
    case 4:
      replace(text, any_piece(text, random), "");
      break;
    case 5:
      text.insert(random.below(text.size() + 1), copy_of(text, any_piece(text, random)));
      break;
    case 6:
      text.insert(random.below(text.size() + 1), random.one_of(kBytes));
      break;
    default:
      if (!text.empty()) {
        text[random.below(text.size())] = static_cast<char>(random.below(256));
      }
  }
}

}  // namespace tilewright::fuzz
