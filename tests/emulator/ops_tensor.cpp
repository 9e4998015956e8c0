// mma, wgmma, ldmatrix, stmatrix.
#include <algorithm>

#include "emulator/ops.hpp"
#include "emulator/tensor_core.hpp"

namespace tilewright::emulator {
namespace {

std::vector<LaneRegisters> gather(Warp& warp, const std::vector<std::uint32_t>& rows) {
  std::vector<LaneRegisters> values;
  values.reserve(rows.size());
  for (const std::uint32_t row : rows) {
    values.push_back(warp.registers(row));
  }
  return values;
}

void scatter(Warp& warp, const std::vector<std::uint32_t>& rows,
             const std::vector<LaneRegisters>& values) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    warp.registers(rows[i]) = values[i];
  }
}

std::vector<std::uint32_t> sources(Builder& builder, const Operand& operand) {
  std::vector<std::uint32_t> rows;
  if (operand.kind == Operand::Kind::vector) {
    for (const Operand& part : operand.parts) {
      rows.push_back(builder.source(part, Width::w32, "f32"));
    }
  } else {
    rows.push_back(builder.source(operand, Width::w32, "f32"));
  }
  return rows;
}

void mma(Warp& warp, const Instruction& in, LaneMask lanes) {
  check_whole_warp(lanes);
  const Details& details = *in.details;
  std::array<LaneRegisters, 4> a, b, c, d;
  const auto take = [&](const std::vector<std::uint32_t>& rows, auto& to) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      to[i] = warp.registers(rows[i]);
    }
    return std::span<const LaneRegisters>(to.data(), rows.size());
  };
  mma_sync(details.mma, take(details.a, a), take(details.b, b), take(details.c, c),
           std::span<LaneRegisters>(d.data(), details.d.size()));
  for (std::size_t i = 0; i < details.d.size(); ++i) {
    warp.registers(details.d[i]) = d[i];
  }
}

bool decode_mma(Builder& builder, const Statement& s, Instruction& in) {
  const auto kind = parse_mma(s.opcode);
  if (!kind) {
    return false;
  }
  Details& details = builder.details(in);
  details.mma = *kind;
  details.d = sources(builder, s.operands.at(0));
  details.a = sources(builder, s.operands.at(1));
  details.b = sources(builder, s.operands.at(2));
  details.c = sources(builder, s.operands.at(3));
  in.flags = Instruction::kAllTogether;
  in.run = mma;
  return true;
}

// b: the scale's predicate; option: bit 0: the predicate is negated. a, c: descriptors.
void wgmma_async(Warp& warp, const Instruction& in, LaneMask lanes) {
  check_whole_warp(lanes);
  const bool scale =
      (((in.option & 1) != 0 ? ~warp.predicates[in.b] : warp.predicates[in.b]) & 1) != 0;
  const WgmmaKind& kind = in.details->wgmma;
  const std::uint64_t a = kind.a_in_registers ? 0 : warp.row<std::uint64_t>(in.a)[0];
  const std::uint64_t b = warp.row<std::uint64_t>(in.c)[0];
  warp.wgmmas.add([&warp, &in, scale, a, b] {
    const Details& details = *in.details;
    std::vector<LaneRegisters> d = gather(warp, details.d);
    wgmma(details.wgmma, static_cast<int>(warp.index % 4), gather(warp, details.a), a, b, scale, d,
          warp.block->for_async_reads());
    scatter(warp, details.d, d);
  });
}

bool decode_wgmma(Builder& builder, const Statement& s, Instruction& in) {
  auto kind = parse_wgmma(s.opcode);
  if (!kind) {
    return false;
  }
  Details& details = builder.details(in);
  details.d = sources(builder, s.operands.at(0));
  kind->a_in_registers = s.operands.at(1).kind == Operand::Kind::vector;
  if (kind->a_in_registers) {
    details.a = sources(builder, s.operands[1]);
  } else {
    in.a = builder.source(s.operands[1], Width::w64);
  }
  in.c = builder.source(s.operands.at(2), Width::w64);
  const Operand& scale = s.operands.at(3);
  if (scale.kind == Operand::Kind::immediate) {
    in.b = builder.allocate(Width::predicate).where;  // which nobody writes: false
    in.option = scale.bits != 0 ? 1 : 0;
  } else {
    in.b = builder.source(scale, Width::predicate);
    in.option = scale.negated ? 1 : 0;
  }
  const auto number = [&](std::size_t i, int otherwise) {
    return i < s.operands.size() ? static_cast<int>(s.operands[i].bits) : otherwise;
  };
  kind->scale_a = number(4, 1);
  kind->scale_b = number(5, 1);
  if (kind->a_in_registers) {
    kind->transpose_b = number(6, 0) != 0;
  } else {
    kind->transpose_a = number(6, 0) != 0;
    kind->transpose_b = number(7, 0) != 0;
  }
  details.wgmma = *kind;
  in.flags = Instruction::kAllTogether;
  in.run = wgmma_async;
  return true;
}

void wgmma_commit(Warp& warp, const Instruction&, LaneMask) { warp.wgmmas.commit(); }
void wgmma_wait(Warp& warp, const Instruction& in, LaneMask) { warp.wgmmas.wait(in.option); }

// option: 1 transposes; 8 up: the count.
LaneRegisters addresses_of(Warp& warp, const Instruction& in) {
  LaneRegisters addresses;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    addresses[static_cast<std::size_t>(lane)] =
        static_cast<std::uint32_t>(address_of(warp, in, lane));
  }
  return addresses;
}

void load_matrices(Warp& warp, const Instruction& in, LaneMask lanes) {
  check_whole_warp(lanes);
  std::array<LaneRegisters, 4> d;
  const auto count = in.details->d.size();
  ldmatrix(static_cast<int>(count), (in.option & 1) != 0, addresses_of(warp, in),
           std::span<LaneRegisters>(d.data(), count), warp.block->shared);
  for (std::size_t i = 0; i < count; ++i) {
    warp.registers(in.details->d[i]) = d[i];
  }
}

void store_matrices(Warp& warp, const Instruction& in, LaneMask lanes) {
  check_whole_warp(lanes);
  const std::vector<LaneRegisters> values = gather(warp, in.details->a);
  const LaneRegisters addresses = addresses_of(warp, in);
  stmatrix(static_cast<int>(values.size()), (in.option & 1) != 0, addresses, values,
           warp.block->shared);
  for (std::size_t row = 0; row < 8 * values.size(); ++row) {
    warp.block->written(warp, addresses[row], kGranule_bytes);
  }
  ++warp.grid->events;
}

void transpose_matrix(Warp& warp, const Instruction& in, LaneMask lanes) {
  check_whole_warp(lanes);
  warp.registers(in.d) = movmatrix(warp.registers(in.a));
}

bool decode_matrix_moves(Builder& builder, const Statement& s, Instruction& in) {
  in.flags = Instruction::kAllTogether;
  in.option = s.has("trans") ? 1 : 0;
  if (s.part(0) == "movmatrix") {
    in.d = builder.destination(s.operands.at(0), Width::w32);
    in.a = builder.source(s.operands.at(1), Width::w32);
    in.run = transpose_matrix;
    return true;
  }
  if (!s.has("m8n8") || !s.has("b16")) {
    return false;
  }
  Details& details = builder.details(in);
  if (s.part(0) == "ldmatrix") {
    details.d = sources(builder, s.operands.at(0));
    builder.address(in, s.operands.at(1));
    in.run = load_matrices;
  } else {
    builder.address(in, s.operands.at(0));
    details.a = sources(builder, s.operands.at(1));
    in.run = store_matrices;
  }
  return true;
}

}  // namespace

bool decode_tensor(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  if (name == "mma") return decode_mma(builder, s, in);
  if (name == "ldmatrix" || name == "stmatrix" || name == "movmatrix") {
    return decode_matrix_moves(builder, s, in);
  }
  if (name == "wgmma" && s.part(1) == "mma_async") return decode_wgmma(builder, s, in);
  if (name == "wgmma") {
    in.flags = Instruction::kAllTogether;
    if (s.part(1) == "wait_group") {
      in.option = static_cast<std::uint32_t>(s.operands.at(0).bits);
      in.run = wgmma_wait;
    } else if (s.part(1) == "commit_group") {
      in.run = wgmma_commit;
    }
    return true;  // wgmma.fence orders what is in order here
  }
  return false;
}

}  // namespace tilewright::emulator
