// A kernel's body: scopes, registers, labels, statements.
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "emulator/operand_parser.hpp"
#include "emulator/parser.hpp"
#include "emulator/text.hpp"

namespace tilewright::emulator {
namespace {

struct Scope {
  std::unordered_map<std::string, Register> registers;
  std::unordered_map<std::string, Width> numbered;  // "%r" of ".reg .b32 %r<9>"
  std::unordered_map<std::string, std::uint32_t> labels;
  std::vector<std::pair<std::uint32_t, std::string>> branches;  // instruction, label
};

class KernelParser {
 public:
  KernelParser(const Module& module, std::string_view text, std::size_t begin, Kernel& kernel)
      : module_(module),
        text_(text),
        at_(text, begin),
        operands_(at_, [this](const std::string& name) { return find_register(name); }),
        builder_(kernel),
        kernel_(kernel) {
    builder_.module = &module;
  }

  void parse() {
    parse_head();
    at_.next();  // {
    scopes_.emplace_back();
    while (!scopes_.empty()) {
      parse_statement();
    }
    finish();
  }

 private:
  void parse_head() {
    at_.skip_to(' ');
    kernel_.name = at_.word();
    at_.skip_space();
    if (at_.peek() == '(') {
      at_.next();
      while (at_.skip_space(), at_.peek() != ')') {
        const std::size_t first = at_.position();
        at_.skip_to_any(",)");
        add_parameter(text_.substr(first, at_.position() - first));
        if (at_.peek() == ',') {
          at_.next();
        }
      }
      at_.next();
    }
    while (at_.skip_space(), at_.peek() != '{') {
      at_.next();
      const std::string_view directive = at_.word();
      std::vector<std::uint32_t> numbers;
      while (at_.skip_space(),
             std::isdigit(static_cast<unsigned char>(at_.peek())) != 0 || at_.peek() == ',') {
        if (at_.peek() == ',') {
          at_.next();
        } else {
          numbers.push_back(static_cast<std::uint32_t>(at_.number()));
        }
      }
      numbers.resize(3, 1);
      if (directive == "maxntid" || directive == "reqntid") {
        kernel_.max_threads = numbers[0] * numbers[1] * numbers[2];
      } else if (directive == "minnctapersm") {
        kernel_.min_blocks_per_sm = numbers[0];
      } else if (directive == "maxnreg") {
        kernel_.max_registers = numbers[0];
      } else if (directive == "reqnctapercluster") {
        std::copy_n(numbers.begin(), 3, kernel_.required_cluster);
      }
    }
  }

  void add_parameter(std::string_view text) {
    const Declaration declaration = parse_declaration(text.substr(text.find(".param") + 6));
    std::uint32_t& end = kernel_.parameter_bytes;
    end = (end + declaration.alignment - 1) / declaration.alignment * declaration.alignment;
    kernel_.parameters.push_back({end, declaration.bytes});
    builder_.variables[declaration.name] = {Space::parameter, end, false};
    end += declaration.bytes;
  }

  void parse_statement() {
    at_.skip_space();
    const std::size_t first = at_.position();
    if (at_.at_end()) {
      throw EmulationError("the kernel's text has no end");
    }
    if (at_.peek() == '{') {
      at_.next();
      scopes_.emplace_back();
    } else if (at_.peek() == '}') {
      at_.next();
      close_scope();
    } else if (at_.peek() == '.') {
      at_.next();
      parse_directive(at_.word());
    } else if (at_.peek() == ';') {
      at_.next();
    } else {
      if (at_.peek() != '@') {
        const std::string_view word = at_.word();
        at_.skip_space();
        if (at_.peek() == ':' && !at_.starts("::")) {
          at_.next();
          parse_label(std::string(word));
          return;
        }
      }
      at_.move_to(first);
      parse_instruction();
    }
  }

  void parse_label(const std::string& name) {
    at_.skip_space();
    if (!at_.starts(".branchtargets")) {
      add_label(name);
      return;
    }
    at_.skip_to(' ');
    std::vector<std::string>& targets = builder_.branch_targets[name];
    while (at_.skip_space(), at_.peek() != ';') {
      if (at_.peek() == ',') {
        at_.next();
      } else {
        targets.emplace_back(at_.word());
      }
    }
    at_.next();
  }

  void add_label(const std::string& name) {
    scopes_.back().labels[name] = static_cast<std::uint32_t>(kernel_.code.size());
    targets_.insert(static_cast<std::uint32_t>(kernel_.code.size()));
  }

  // Branches whose label is not in this scope look for it in the one around it.
  void close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (const auto& [branch, label] : scope.branches) {
      if (const auto found = scope.labels.find(label); found != scope.labels.end()) {
        Instruction& in = kernel_.code[branch];
        if (in.details == nullptr || in.details->table_label.empty()) {
          in.immediate = found->second;
        } else {
          kernel_.tables[in.option].push_back(found->second);
        }
      } else if (scopes_.empty()) {
        throw EmulationError("there is no label '" + label + "'");
      } else {
        scopes_.back().branches.emplace_back(branch, label);
      }
    }
  }

  void parse_directive(std::string_view word) {
    if (word == "loc") {
      const auto file = static_cast<int>(at_.number());
      const auto line = at_.number();
      const auto found = module_.files().find(file);
      if (found != module_.files().end()) {
        const std::string& name = found->second;
        location_ = name.substr(name.rfind('/') + 1) + ":" + std::to_string(line);
      }
      at_.skip_line();
    } else if (word == "reg") {
      declare_registers();
    } else if (word == "pragma") {
      at_.skip_statement();
    } else {
      const std::size_t first = at_.position();
      at_.skip_statement();
      declare_variable(word, text_.substr(first, at_.position() - first - 1));
    }
  }

  void declare_registers() {
    at_.skip_space();
    at_.next();
    const Width width = width_of_type(at_.word());
    while (at_.skip_space(), at_.peek() != ';') {
      if (at_.peek() == ',') {
        at_.next();
        continue;
      }
      const std::string name(at_.word());
      if (name.empty()) {
        throw EmulationError("registers of a vector type");
      }
      at_.skip_space();
      if (at_.peek() == '<') {
        at_.skip_to('>');
        at_.next();
        scopes_.back().numbered[name] = width;
      } else {
        scopes_.back().registers[name] = builder_.allocate(width);
      }
    }
    at_.next();
  }

  void declare_variable(std::string_view space, std::string_view text) {
    const Declaration declaration = parse_declaration(text);
    const auto place = [&](std::uint32_t& end) {
      end = (end + declaration.alignment - 1) / declaration.alignment * declaration.alignment;
      return std::exchange(end, end + declaration.bytes);
    };
    if (space == "shared") {
      builder_.variables[declaration.name] = {
          Space::shared, builder_.place_shared(declaration.bytes, declaration.alignment), false};
    } else if (space == "local" || space == "param") {
      builder_.variables[declaration.name] = {Space::local,
                                              std::uint64_t{place(kernel_.local_bytes)}, false};
    } else {
      throw EmulationError("a variable in ." + std::string(space) + " inside a kernel");
    }
  }

  std::optional<Register> find_register(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->registers.find(name); found != scope->registers.end()) {
        return found->second;
      }
      const std::size_t prefix = name.find_last_not_of("0123456789") + 1;
      if (prefix == name.size()) {
        continue;
      }
      if (const auto found = scope->numbered.find(name.substr(0, prefix));
          found != scope->numbered.end()) {
        return scope->registers[name] = builder_.allocate(found->second);
      }
    }
    return std::nullopt;
  }

  void parse_instruction() {
    const std::size_t first = at_.position();
    Statement statement;
    statement.line = line_of(first);
    statement.location = location_;
    std::size_t end = text_.find(';', first);
    statement.text = squeeze(text_.substr(first, end - first));
    try {
      if (at_.peek() == '@') {
        at_.next();
        statement.guard = operands_.parse_single();
      }
      statement.opcode = at_.dotted_word();
      split_opcode(statement);
      while (at_.skip_space(), at_.peek() != ';') {
        if (at_.peek() == ',') {
          at_.next();
        } else {
          statement.operands.push_back(operands_.parse());
        }
      }
      at_.next();
      if (!inline_call(statement)) {
        decode(statement);
      }
    } catch (const EmulationError& error) {
      throw EmulationError(std::string(error.what()) + "\n  PTX line " +
                           std::to_string(statement.line) + " (" + location_ +
                           "): " + statement.text + "\n  kernel " + kernel_.name);
    }
  }

  // Puts the body of the function that is called here. Its parameters are the caller's variables.
  bool inline_call(const Statement& statement) {
    if (statement.parts.front() != "call") {
      return false;
    }
    const auto& operands = statement.operands;
    const auto name = std::find_if(operands.begin(), operands.end(), [](const Operand& operand) {
      return operand.kind == Operand::Kind::symbol;
    });
    const DeviceFunction* const function =
        name == operands.end() ? nullptr : module_.function(name->name);
    if (function == nullptr || statement.guard) {
      return false;
    }
    if (return_labels_.size() > 32) {
      throw EmulationError("a function that calls itself");
    }
    const auto bind = [&](const std::vector<std::string>& names, const Operand& list) {
      for (std::size_t i = 0; i < names.size(); ++i) {
        builder_.variables[names[i]] = builder_.variables.at(list.parts.at(i).name);
      }
    };
    if (name != operands.begin()) {
      bind(function->results, operands.front());
    }
    if (name + 1 != operands.end()) {
      bind(function->parameters, name[1]);
    }
    const std::size_t resume = at_.position();
    const auto lines = std::pair(line_, line_at_);
    line_ = 0;
    line_at_ = 0;
    scopes_.emplace_back();
    return_labels_.push_back("$return" + std::to_string(++calls_));
    const std::string label = return_labels_.back();
    const std::size_t depth = scopes_.size();
    at_.move_to(function->body);
    do {
      parse_statement();
    } while (scopes_.size() > depth);
    return_labels_.pop_back();
    add_label(label);
    close_scope();
    at_.move_to(resume);
    std::tie(line_, line_at_) = lines;
    return true;
  }

  static void split_opcode(Statement& statement) {
    const std::string_view opcode = statement.opcode;
    for (std::size_t first = 0; first <= opcode.size();) {
      const std::size_t dot = std::min(opcode.find('.', first), opcode.size());
      statement.parts.push_back(opcode.substr(first, dot - first));
      first = dot + 1;
    }
  }

  void decode(const Statement& statement) {
    Instruction in;
    in.line = statement.line;
    if (statement.guard) {
      in.guard = static_cast<std::int32_t>(statement.guard->reg.where);
      in.guard_negated = statement.guard->negated;
    }
    auto details = std::make_unique<Details>();
    details->text = statement.text;
    details->location = statement.location;
    in.details = details.get();
    builder_.pending_details = details.get();
    builder_.branch_label.clear();
    builder_.return_label = return_labels_.empty() ? "" : return_labels_.back();
    if (!decode_statement(builder_, statement, in)) {
      throw EmulationError("the emulator does not know this instruction");
    }
    if (in.run == nullptr) {
      return;  // nothing to do
    }
    const auto index = static_cast<std::uint32_t>(kernel_.code.size());
    if (!builder_.branch_label.empty()) {
      if (details->table_label.empty()) {
        scopes_.back().branches.emplace_back(index, builder_.branch_label);
      } else {
        in.option = static_cast<std::uint32_t>(kernel_.tables.size());
        kernel_.tables.emplace_back();
        for (const std::string& label : builder_.branch_targets[details->table_label]) {
          scopes_.back().branches.emplace_back(index, label);
        }
      }
    }
    kernel_.code.push_back(in);
    kernel_.details.push_back(std::move(details));
  }

  void finish() {
    kernel_.local_bytes = (kernel_.local_bytes + 15) / 16 * 16;
    Instruction end;
    end.run = exit_handler();
    end.flags = Instruction::kTarget;
    kernel_.code.push_back(end);
    for (const std::uint32_t target : targets_) {
      kernel_.code[target].flags |= Instruction::kTarget;
    }
  }

  std::uint32_t line_of(std::size_t position) {
    line_ += static_cast<std::uint32_t>(
        std::count(text_.begin() + static_cast<std::ptrdiff_t>(line_at_),
                   text_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
    line_at_ = position;
    return line_ + 1;
  }

  static std::string squeeze(std::string_view text) {
    std::string result;
    for (const char c : text) {
      const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
      if (!space) {
        result += c;
      } else if (!result.empty() && result.back() != ' ') {
        result += ' ';
      }
      if (result.size() > 200) {
        return result + "...";
      }
    }
    return result;
  }

  const Module& module_;
  std::string_view text_;
  Cursor at_;
  OperandParser operands_;
  Builder builder_;
  Kernel& kernel_;
  std::vector<Scope> scopes_;
  std::set<std::uint32_t> targets_;
  std::vector<std::string> return_labels_;  // of the calls around the current statement
  int calls_ = 0;
  std::string location_;
  std::size_t line_at_ = 0;
  std::uint32_t line_ = 0;
};

}  // namespace

bool Statement::has(std::string_view suffix) const {
  return std::find(parts.begin() + 1, parts.end(), suffix) != parts.end();
}

std::unique_ptr<Kernel> parse_kernel(const Module& module, std::string_view text,
                                     std::size_t begin) {
  auto kernel = std::make_unique<Kernel>();
  const std::size_t entry = text.find(".entry", begin);
  KernelParser(module, text, entry, *kernel).parse();
  return kernel;
}

}  // namespace tilewright::emulator
