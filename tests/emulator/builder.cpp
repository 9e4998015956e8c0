#include <algorithm>
#include <array>
// Places of operands in a warp's registers.
#include <bit>
#include <utility>

#include "emulator/parser.hpp"

namespace tilewright::emulator {

Width width_of_type(std::string_view type) {
  if (type == "pred") {
    return Width::predicate;
  }
  return type.ends_with("64") || type == "f16x4" ? Width::w64 : Width::w32;
}

Register Builder::allocate(Width width) {
  if (width == Width::predicate) {
    return {width, kernel_.predicates++};
  }
  const Register result{width, kernel_.registers_bytes};
  kernel_.registers_bytes += row_bytes(width);
  return result;
}

std::uint32_t Builder::immediate(Width width, std::uint64_t bits) {
  const auto [found, is_new] = immediates_.try_emplace({static_cast<int>(width), bits}, 0);
  if (is_new) {
    found->second = allocate(width).where;
    kernel_.immediates.push_back({width, bits, found->second});
  }
  return found->second;
}

std::uint32_t Builder::special(Special special, Width width) {
  const auto [found, is_new] =
      specials_.try_emplace({static_cast<int>(special), static_cast<int>(width)}, 0);
  if (is_new) {
    found->second = allocate(width).where;
    kernel_.specials.push_back({special, width, found->second});
  }
  return found->second;
}

std::uint32_t Builder::sink(Width width) {
  const auto [found, is_new] = sinks_.try_emplace(static_cast<int>(width), 0);
  if (is_new) {
    found->second = allocate(width).where;
  }
  return found->second;
}

const Variable* Builder::find_variable(const std::string& name) {
  if (const auto found = variables.find(name); found != variables.end()) {
    return &found->second;
  }
  const auto found = module->variables().find(name);
  if (found == module->variables().end()) {
    return nullptr;
  }
  const Variable& variable = found->second;
  if (variable.dynamic) {
    kernel_.dynamic_shared_alignment =
        std::max(kernel_.dynamic_shared_alignment, static_cast<std::uint32_t>(variable.address));
  } else if (variable.space == Space::shared) {
    const Declaration& declaration = module->shared_variable(name);
    Variable& placed = variables[name];
    placed = {Space::shared, place_shared(declaration.bytes, declaration.alignment), false};
    return &placed;
  }
  return &variable;
}

std::uint32_t Builder::place_shared(std::uint32_t bytes, std::uint32_t alignment) {
  std::uint32_t& end = kernel_.static_shared_bytes;
  end = (end + alignment - 1) / alignment * alignment;
  return kReservedShared_bytes + std::exchange(end, end + bytes);
}

std::uint32_t Builder::source(const Operand& operand, Width width, std::string_view type) {
  switch (operand.kind) {
    case Operand::Kind::reg:
      if (operand.reg.width != width) {
        throw EmulationError("an operand's register has another width than the instruction");
      }
      return operand.reg.where;
    case Operand::Kind::immediate: {
      std::uint64_t bits = operand.bits;
      if (type == "f32" && operand.literal == 'd') {
        bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
      } else if (type == "f64" && operand.literal == 'f') {
        bits = std::bit_cast<std::uint64_t>(
            static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits))));
      } else if (type.ends_with("16")) {
        bits &= 0xffff;
      } else if (width == Width::w32) {
        bits &= 0xffffffffu;
      }
      return immediate(width, bits);
    }
    case Operand::Kind::special:
      return special(operand.special, width);
    case Operand::Kind::symbol: {
      const Variable* const variable = find_variable(operand.name);
      if (variable == nullptr) {
        throw EmulationError("unknown name '" + operand.name + "'");
      }
      if (variable->dynamic) {
        return special(Special::dynamic_smem_base, width);
      }
      if (variable->space == Space::parameter) {
        throw EmulationError("the address of parameter '" + operand.name + "' is used here");
      }
      return immediate(width, variable->address);
    }
    default:
      throw EmulationError("an operand is of a kind that is not known here");
  }
}

std::uint32_t Builder::destination(const Operand& operand, Width width) {
  if (operand.kind == Operand::Kind::sink) {
    return sink(width);
  }
  if (operand.kind != Operand::Kind::reg || operand.reg.width != width) {
    throw EmulationError("the destination has another width than the instruction");
  }
  return operand.reg.where;
}

Width Builder::width_of(const Operand& operand, Width otherwise) const {
  return operand.kind == Operand::Kind::reg ? operand.reg.width : otherwise;
}

void Builder::address(Instruction& in, const Operand& operand) {
  if (operand.kind != Operand::Kind::address) {
    throw EmulationError("an operand is no address");
  }
  const Operand& base = operand.parts.front();
  in.immediate = operand.offset;
  if (base.kind == Operand::Kind::reg) {
    in.a = base.reg.where;
    in.wide_address = base.reg.width == Width::w64;
    return;
  }
  in.wide_address = true;
  if (base.kind == Operand::Kind::symbol) {
    const Variable* const variable = find_variable(base.name);
    if (variable != nullptr && variable->space == Space::parameter) {
      in.a = special(Special::parameters, Width::w64);
      in.immediate += static_cast<std::int64_t>(variable->address);
      return;
    }
  }
  in.a = source(base, Width::w64);
}

Details& Builder::details(Instruction& instruction) {
  instruction.details = pending_details;
  return *pending_details;
}

Instruction& Builder::append(Instruction instruction) {
  kernel_.code.push_back(instruction);
  return kernel_.code.back();
}

bool decode_statement(Builder& builder, const Statement& statement, Instruction& in) {
  constexpr std::array kGroups = {
      decode_moves,    decode_arithmetic, decode_predicates, decode_logic,    decode_packed,
      decode_memory,   decode_atomics,    decode_control,    decode_sync,     decode_warp_wide,
      decode_mbarrier, decode_async,      decode_tensor,     decode_registers};
  return std::any_of(kGroups.begin(), kGroups.end(),
                     [&](auto* decode) { return decode(builder, statement, in); });
}

}  // namespace tilewright::emulator
