// The module level of PTX: variables and the places of kernels.
#include <cctype>
#include <cstring>

#include "emulator/parser.hpp"
#include "emulator/text.hpp"

namespace tilewright::emulator {
namespace {

std::uint32_t bytes_of_type(std::string_view type) {
  static const std::unordered_map<std::string_view, std::uint32_t> kBytes = {
      {"b8", 1},  {"u8", 1},   {"s8", 1},  {"b16", 2}, {"u16", 2},   {"s16", 2},
      {"f16", 2}, {"bf16", 2}, {"b32", 4}, {"u32", 4}, {"s32", 4},   {"f32", 4},
      {"b64", 8}, {"u64", 8},  {"s64", 8}, {"f64", 8}, {"b128", 16}, {"pred", 1}};
  const auto found = kBytes.find(type);
  return found == kBytes.end() ? 0 : found->second;
}

}  // namespace

Declaration parse_declaration(std::string_view text) {
  Declaration result;
  std::uint32_t element = 4;
  Cursor at(text);
  while (at.skip_space(), at.peek() == '.') {
    at.next();
    const std::string_view word = at.word();
    if (word == "align") {
      result.alignment = static_cast<std::uint32_t>(at.number());
    } else if (bytes_of_type(word) != 0) {
      element = bytes_of_type(word);
    } else if (word == "v2" || word == "v4") {
      throw EmulationError("a variable of a vector type");
    }
  }
  result.alignment = std::max(result.alignment, element);
  result.name = at.word();
  result.bytes = element;
  result.element_bytes = element;
  at.skip_space();
  if (at.peek() == '[') {
    std::uint32_t count = 1;
    while (at.skip_space(), at.peek() == '[') {
      at.next();
      at.skip_space();
      if (at.peek() == ']') {
        result.is_array_of_unknown_size = true;
        count = 0;
      } else {
        count *= static_cast<std::uint32_t>(at.number());
      }
      at.skip_space();
      at.next();
    }
    result.bytes = element * count;
  }
  at.skip_space();
  if (at.peek() == '=') {
    at.next();
    result.initial = at.rest();
  }
  return result;
}

// The names of parameters in "(.param .b64 a, .param .b32 b)".
std::vector<std::string> parse_parameter_names(Cursor& at) {
  std::vector<std::string> names;
  at.next();
  while (at.skip_space(), at.peek() != ')') {
    const std::size_t first = at.position();
    at.skip_to_any(",)");
    const std::string_view text = at.since(first);
    const std::size_t param = text.find(".param");
    if (param != std::string_view::npos) {
      names.push_back(parse_declaration(text.substr(param + 6)).name);
    }
    if (at.peek() == ',') {
      at.next();
    }
  }
  at.next();
  return names;
}

// What follows ".func": "(results) name(parameters)".
DeviceFunction parse_function_head(Cursor& at) {
  DeviceFunction function;
  at.skip_space();
  if (at.peek() == '(') {
    function.results = parse_parameter_names(at);
  }
  function.name = at.word();
  at.skip_space();
  if (at.peek() == '(') {
    function.parameters = parse_parameter_names(at);
  }
  return function;
}

Module::Module(std::string text) : text_(std::move(text)) { scan(); }

// Finds what is at the outermost level.
void Module::scan() {
  Cursor at(text_);
  while (at.skip_space(), !at.at_end()) {
    const std::size_t begin = at.position();
    if (at.peek() != '.') {
      at.next();
      continue;
    }
    at.next();
    std::string_view word = at.word();
    bool is_extern = false;
    while (word == "visible" || word == "extern" || word == "weak" || word == "common") {
      is_extern = is_extern || word == "extern";
      at.skip_space();
      at.next();
      word = at.word();
    }
    if (word == "entry") {
      entries_[std::string(at.word())].begin = begin;
      at.skip_to('{');
      at.skip_braces();
    } else if (word == "func") {
      scan_function(at);
    } else if (word == "shared") {
      declare_shared(parse_declaration(at.statement()), is_extern);
    } else if (word == "global" || word == "const") {
      declare_global(parse_declaration(at.statement()));
    } else if (word == "section") {
      at.skip_to('{');
      at.skip_braces();
    } else if (word == "file") {
      scan_file(at);
    } else if (word == "alias" || word == "pragma") {
      at.skip_statement();
    } else {
      at.skip_line();
    }
  }
}

// What follows ".file": a number and a name in quotes.
void Module::scan_file(Cursor& at) {
  const auto number = static_cast<int>(at.number());
  at.skip_to('"');
  at.next();
  const std::size_t first = at.position();
  at.skip_to('"');
  files_[number] = at.since(first);
  at.skip_line();
}

void Module::scan_function(Cursor& at) {
  DeviceFunction function = parse_function_head(at);
  at.skip_to_any("{;");
  if (at.peek() != '{') {  // it is defined elsewhere
    at.next();
    return;
  }
  function.body = at.position();
  functions_[function.name] = function;
  at.skip_braces();
}

void Module::declare_shared(const Declaration& declaration, bool is_extern) {
  Variable& variable = variables_[declaration.name];
  if (is_extern) {
    variable = {Space::shared, declaration.alignment, true};
  } else {
    variable = {Space::shared, 0, false};  // each kernel that uses it finds it a place
    shared_[declaration.name] = declaration;
  }
}

void Module::declare_global(const Declaration& declaration) {
  const std::size_t alignment = std::max<std::size_t>(declaration.alignment, 16);
  auto storage = std::make_unique<std::byte[]>(declaration.bytes + alignment);
  void* base = storage.get();
  std::size_t space = declaration.bytes + alignment;
  auto* const place =
      static_cast<std::byte*>(std::align(alignment, declaration.bytes, base, space));
  fill_variable(place, declaration);
  storage_.push_back(std::move(storage));
  device_memory().add_variable(place, declaration.bytes);
  variables_[declaration.name] = {Space::global, reinterpret_cast<std::uintptr_t>(place), false};
  sizes_[declaration.name] = declaration.bytes;
}

std::byte* Module::variable(const std::string& name, std::size_t* bytes) {
  const auto found = variables_.find(name);
  if (found == variables_.end() || found->second.space != Space::global) {
    return nullptr;
  }
  *bytes = sizes_[name];
  return reinterpret_cast<std::byte*>(found->second.address);
}

// Initial values: a list of numbers, or one number.
void fill_variable(std::byte* place, const Declaration& declaration) {
  if (declaration.initial.empty()) {
    return;
  }
  const std::uint32_t element = declaration.element_bytes;
  Cursor at(declaration.initial);
  for (std::uint32_t offset = 0; offset < declaration.bytes;) {
    at.skip_space();
    const char c = at.peek();
    if (c == '{' || c == '}' || c == ',') {
      at.next();
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '-') {
      const std::uint64_t value = at.literal().bits;
      std::memcpy(place + offset, &value, std::min(element, 8u));
      offset += element;
    } else if (at.at_end()) {
      return;
    } else {
      throw EmulationError("variable '" + declaration.name +
                           "' has an initial value that is not known");
    }
  }
}

const Kernel& Module::kernel(const std::string& name) {
  Entry& entry = entries_.at(name);
  if (entry.parsed == nullptr) {
    entry.parsed = parse_kernel(*this, std::string_view(text_), entry.begin);
  }
  return *entry.parsed;
}

}  // namespace tilewright::emulator
