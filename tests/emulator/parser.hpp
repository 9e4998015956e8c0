// PTX text to kernels.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/memory.hpp"
#include "emulator/program.hpp"

namespace tilewright::emulator {

class Cursor;

struct Register {
  Width width = Width::w32;
  std::uint32_t where = 0;  // a row, or a predicate
};

// An operand as it is written.
struct Operand {
  enum class Kind { reg, immediate, special, symbol, address, vector, pair, sink };
  Kind kind = Kind::sink;
  Register reg;
  bool negated = false;    // !p
  char literal = 'i';      // immediate: an (i)nteger, (f)loat or (d)ouble as bits
  std::uint64_t bits = 0;  // immediate
  Special special{};
  std::string name;            // symbol
  std::int64_t offset = 0;     // address
  std::vector<Operand> parts;  // vector, pair; address: its base
};

// One instruction as it is written.
struct Statement {
  std::string text;
  std::string location;
  std::uint32_t line = 0;
  std::optional<Operand> guard;
  std::string opcode;                   // with all suffixes
  std::vector<std::string_view> parts;  // of the opcode, split at dots
  std::vector<Operand> operands;

  std::string_view part(std::size_t index) const {
    return index < parts.size() ? parts[index] : std::string_view();
  }
  std::string_view last() const { return parts.back(); }
  bool has(std::string_view suffix) const;
  bool starts(std::string_view prefix) const { return opcode.starts_with(prefix); }
};

// Where a variable lies.
struct Variable {
  Space space = Space::global;
  std::uint64_t address = 0;
  bool dynamic = false;  // extern shared
};

// A variable's declaration: ".align 8 .b8 name[336]".
struct Declaration {
  std::string name;
  std::uint32_t bytes = 0;
  std::uint32_t alignment = 1;
  bool is_array_of_unknown_size = false;
  std::uint32_t element_bytes = 4;
  std::string_view initial;
};
Declaration parse_declaration(std::string_view text);
void fill_variable(std::byte* place, const Declaration& declaration);

// A function that kernels call. The parser puts its body in place of the call.
struct DeviceFunction {
  std::string name;
  std::vector<std::string> results, parameters;
  std::size_t body = 0;  // of its '{' in the text
};

// The module-level view of a PTX text: variables, and where kernels begin.
class Module {
 public:
  explicit Module(std::string text);

  // Parses the kernel the first time. Throws EmulationError with what it does not know.
  const Kernel& kernel(const std::string& name);
  bool has_kernel(const std::string& name) const { return entries_.contains(name); }
  // Null if there is none.
  std::byte* variable(const std::string& name, std::size_t* bytes);

  std::string_view text() const { return text_; }
  const std::unordered_map<std::string, Variable>& variables() const { return variables_; }
  const DeviceFunction* function(const std::string& name) const {
    const auto found = functions_.find(name);
    return found == functions_.end() ? nullptr : &found->second;
  }
  const std::map<int, std::string>& files() const { return files_; }
  // The declaration of a variable in SMEM that is not extern.
  const Declaration& shared_variable(const std::string& name) const { return shared_.at(name); }

 private:
  struct Entry {
    std::size_t begin = 0;  // of ".entry"
    std::unique_ptr<Kernel> parsed;
  };

  void scan();
  void scan_file(Cursor& at);
  void scan_function(Cursor& at);
  void declare_shared(const Declaration& declaration, bool is_extern);
  void declare_global(const Declaration& declaration);

  std::string text_;
  std::unordered_map<std::string, Entry> entries_;
  std::unordered_map<std::string, Variable> variables_;
  std::unordered_map<std::string, std::size_t> sizes_;  // of those in global memory
  std::unordered_map<std::string, Declaration> shared_;
  std::unordered_map<std::string, DeviceFunction> functions_;
  std::map<int, std::string> files_;
  std::vector<std::unique_ptr<std::byte[]>> storage_;
};

// Parses the kernel whose ".entry" is at the position.
std::unique_ptr<Kernel> parse_kernel(const Module& module, std::string_view text,
                                     std::size_t begin);

// Builds a kernel: places for registers, immediates and special registers.
class Builder {
 public:
  explicit Builder(Kernel& kernel) : kernel_(kernel) {}

  Kernel& kernel() { return kernel_; }
  Register allocate(Width width);
  std::uint32_t immediate(Width width, std::uint64_t bits);
  std::uint32_t special(Special special, Width width);
  // A place whose value nobody reads.
  std::uint32_t sink(Width width);

  // The row, or predicate, of a source of the width. An immediate of a floating-point type may be
  // written as an integer, and the other way round.
  std::uint32_t source(const Operand& operand, Width width, std::string_view type = "");
  std::uint32_t destination(const Operand& operand, Width width);
  Width width_of(const Operand& operand, Width otherwise) const;
  // Sets the instruction's address.
  void address(Instruction& instruction, const Operand& operand);
  Details& details(Instruction& instruction);
  Instruction& append(Instruction instruction);

  const Module* module = nullptr;
  std::unordered_map<std::string, Variable> variables;  // of the kernel
  std::unordered_map<std::string, std::vector<std::string>> branch_targets;
  const Variable* find_variable(const std::string& name);
  std::uint32_t place_shared(std::uint32_t bytes, std::uint32_t alignment);

  Details* pending_details = nullptr;
  std::string branch_label;  // of the instruction that is being decoded
  std::string return_label;  // where `ret` goes, in a function

 private:
  Kernel& kernel_;
  std::map<std::pair<int, std::uint64_t>, std::uint32_t> immediates_;
  std::map<std::pair<int, int>, std::uint32_t> specials_;
  std::map<int, std::uint32_t> sinks_;
};

Width width_of_type(std::string_view type);
Handler exit_handler();

// Turns a statement into an instruction, or into none if it has nothing to do (run is null then).
// Returns false if nobody knows it. The others below return false if it is not one of their group.
bool decode_statement(Builder& builder, const Statement& statement, Instruction& instruction);

bool decode_arithmetic(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_predicates(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_logic(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_packed(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_moves(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_memory(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_atomics(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_sync(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_warp_wide(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_mbarrier(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_async(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_registers(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_tensor(Builder& builder, const Statement& statement, Instruction& instruction);
bool decode_control(Builder& builder, const Statement& statement, Instruction& instruction);

}  // namespace tilewright::emulator
