// Operands of PTX instructions: registers, numbers, names, addresses, vectors.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "emulator/parser.hpp"
#include "emulator/text.hpp"

namespace tilewright::emulator {

class OperandParser {
 public:
  using FindRegister = std::function<std::optional<Register>(const std::string&)>;

  // Reads from the cursor, which others move too.
  OperandParser(Cursor& at, FindRegister find_register)
      : at_(at), find_register_(std::move(find_register)) {}

  Operand parse();         // "a", or a pair "a|b"
  Operand parse_single();  // "a"

 private:
  Operand parse_list(char end);
  Operand parse_address();

  Cursor& at_;
  FindRegister find_register_;
};

}  // namespace tilewright::emulator
