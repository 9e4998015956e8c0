// Branches, ends, and calls of what the CUDA runtime provides.
#include <cstdio>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

void branch(Warp& warp, const Instruction& in, LaneMask lanes) {
  warp.go_to(static_cast<std::uint32_t>(in.immediate), lanes);
}

void branch_by_table(Warp& warp, const Instruction& in, LaneMask lanes) {
  const std::vector<std::uint32_t>& table = warp.kernel->tables[in.option];
  const auto* const index = warp.row<std::uint32_t>(in.a);
  const std::uint32_t first = index[std::countr_zero(lanes)];
  LaneMask same = 0;
  for_lanes(lanes, [&](int lane) { same |= LaneMask{index[lane] == first} << lane; });
  if (first >= table.size()) {
    throw EmulationError("the index " + std::to_string(first) + " is outside the table");
  }
  if (same != lanes) {  // the others do it again, by themselves
    warp.others.push_back({warp.at, lanes & ~same, 0, false});
    warp.active &= ~(lanes & ~same);
  }
  warp.go_to(table[first], same);
}

void end(Warp& warp, const Instruction&, LaneMask lanes) { warp.exit(lanes); }

[[noreturn]] void trap(Warp&, const Instruction&, LaneMask) { throw EmulationError("trap"); }

void nap(Warp& warp, const Instruction&, LaneMask) { warp.polled = 1024; }

// Launches run one after the other: all of those ahead have ended.
void wait_for_launches_ahead(Warp& warp, const Instruction&, LaneMask) { warp.has_waited = true; }

// What an argument of printf says, read from the arguments' memory.
std::string formatted(const std::string& directive, const std::byte*& arguments) {
  char text[512];
  const char kind = directive.back();
  const auto take = [&](auto value) {
    const auto misaligned = reinterpret_cast<std::uintptr_t>(arguments) % sizeof(value);
    arguments += misaligned == 0 ? 0 : sizeof(value) - misaligned;
    std::memcpy(&value, arguments, sizeof(value));
    arguments += sizeof(value);
    return value;
  };
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  if (std::string_view("fFeEgGaA").find(kind) != std::string_view::npos) {
    std::snprintf(text, sizeof(text), directive.c_str(), take(double{}));
  } else if (kind == 's') {
    std::snprintf(text, sizeof(text), directive.c_str(),
                  reinterpret_cast<const char*>(take(std::uint64_t{})));
  } else if (kind == 'p' || directive.find('l') != std::string::npos ||
             directive.find('z') != std::string::npos) {
    std::snprintf(text, sizeof(text), directive.c_str(), take(std::uint64_t{}));
  } else {
    std::snprintf(text, sizeof(text), directive.c_str(), take(std::uint32_t{}));
  }
#pragma GCC diagnostic pop
  return text;
}

void print(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    Instruction argument;
    argument.space = Space::local;
    const auto read = [&](std::uint32_t row) {
      argument.a = row;
      std::uint64_t value = 0;
      std::memcpy(&value, resolve(warp, argument, lane, 8, 8), 8);
      return value;
    };
    const auto* format = reinterpret_cast<const char*>(read(in.a));
    const std::uint64_t list = read(in.b);
    const std::byte* arguments = nullptr;
    if (list != 0) {
      const std::size_t thread = warp.index * kWarpLanes + static_cast<std::uint32_t>(lane);
      arguments = warp.block->local.data() + thread * warp.kernel->local_bytes +
                  static_cast<std::uint32_t>(list);
    }
    std::string text;
    while (*format != '\0') {
      if (*format != '%') {
        text += *format++;
      } else if (format[1] == '%') {
        text += '%';
        format += 2;
      } else {
        std::string directive(1, *format++);
        while (*format != '\0' && std::string_view("diouxXcspfFeEgGaA").find(directive.back()) ==
                                      std::string_view::npos) {
          directive += *format++;
        }
        text += formatted(directive, arguments);
      }
    }
    std::fputs(text.c_str(), stdout);
    if (in.d != 0) {
      warp.row<std::uint32_t>(in.d)[lane] = 0;
    }
  });
  std::fflush(stdout);
}

void fail_assertion(Warp& warp, const Instruction& in, LaneMask lanes) {
  Instruction argument;
  argument.space = Space::local;
  argument.a = in.a;
  std::uint64_t message = 0;
  std::memcpy(&message, resolve(warp, argument, std::countr_zero(lanes), 8, 8), 8);
  throw EmulationError("assertion failed: " + std::string(reinterpret_cast<const char*>(message)));
}

// Calls of the runtime's functions. The parser puts the bodies of all others in place of the calls.
bool decode_call(Builder& builder, const Statement& s, Instruction& in) {
  std::size_t name_at = 0;
  while (name_at < s.operands.size() && s.operands[name_at].kind != Operand::Kind::symbol) {
    ++name_at;
  }
  if (name_at == s.operands.size()) {
    return false;
  }
  const std::string& name = s.operands[name_at].name;
  const auto argument = [&](std::size_t i) {
    return builder.source(s.operands.at(name_at + 1).parts.at(i), Width::w64);
  };
  if (name == "vprintf") {
    in.a = argument(0);
    in.b = argument(1);
    in.run = print;
  } else if (name == "__assertfail") {
    in.a = argument(0);
    in.run = fail_assertion;
  } else {
    throw EmulationError("a call of '" + name + "'");
  }
  return true;
}

}  // namespace

Handler exit_handler() { return end; }

bool decode_control(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  if (name == "bra") {
    in.run = branch;
    builder.branch_label = s.operands.at(0).name;
  } else if (name == "brx") {
    in.a = builder.source(s.operands.at(0), Width::w32);
    builder.details(in).table_label = s.operands.at(1).name;
    builder.branch_label = s.operands[1].name;
    in.run = branch_by_table;
  } else if (name == "ret" && !builder.return_label.empty()) {
    in.run = branch;
    builder.branch_label = builder.return_label;
  } else if (name == "ret" || name == "exit") {
    in.run = end;
  } else if (name == "trap" || name == "brkpt") {
    in.run = trap;
  } else if (name == "nanosleep") {
    in.run = nap;
  } else if (name == "call") {
    return decode_call(builder, s, in);
  } else if (name == "griddepcontrol") {
    in.run = s.has("wait") ? wait_for_launches_ahead : nullptr;
  } else {
    return false;
  }
  return true;
}

}  // namespace tilewright::emulator
