#include "emulator/operand_parser.hpp"

#include <cctype>
#include <unordered_map>

namespace tilewright::emulator {
namespace {

const std::unordered_map<std::string_view, Special>& special_names() {
  static const std::unordered_map<std::string_view, Special> kNames = {
      {"%tid.x", Special::tid_x},
      {"%tid.y", Special::tid_y},
      {"%tid.z", Special::tid_z},
      {"%ntid.x", Special::ntid_x},
      {"%ntid.y", Special::ntid_y},
      {"%ntid.z", Special::ntid_z},
      {"%ctaid.x", Special::ctaid_x},
      {"%ctaid.y", Special::ctaid_y},
      {"%ctaid.z", Special::ctaid_z},
      {"%nctaid.x", Special::nctaid_x},
      {"%nctaid.y", Special::nctaid_y},
      {"%nctaid.z", Special::nctaid_z},
      {"%laneid", Special::laneid},
      {"%warpid", Special::warpid},
      {"%nwarpid", Special::nwarpid},
      {"%smid", Special::smid},
      {"%nsmid", Special::nsmid},
      {"%gridid", Special::gridid},
      {"%clusterid.x", Special::clusterid_x},
      {"%clusterid.y", Special::clusterid_y},
      {"%clusterid.z", Special::clusterid_z},
      {"%nclusterid.x", Special::nclusterid_x},
      {"%nclusterid.y", Special::nclusterid_y},
      {"%nclusterid.z", Special::nclusterid_z},
      {"%cluster_ctaid.x", Special::cluster_ctaid_x},
      {"%cluster_ctaid.y", Special::cluster_ctaid_y},
      {"%cluster_ctaid.z", Special::cluster_ctaid_z},
      {"%cluster_nctaid.x", Special::cluster_nctaid_x},
      {"%cluster_nctaid.y", Special::cluster_nctaid_y},
      {"%cluster_nctaid.z", Special::cluster_nctaid_z},
      {"%cluster_ctarank", Special::cluster_ctarank},
      {"%cluster_nctarank", Special::cluster_nctarank},
      {"%is_explicit_cluster", Special::is_explicit_cluster},
      {"%lanemask_eq", Special::lanemask_eq},
      {"%lanemask_lt", Special::lanemask_lt},
      {"%lanemask_le", Special::lanemask_le},
      {"%lanemask_gt", Special::lanemask_gt},
      {"%lanemask_ge", Special::lanemask_ge},
      {"%dynamic_smem_size", Special::dynamic_smem_size},
      {"%total_smem_size", Special::total_smem_size},
      {"%clock", Special::clock},
      {"%clock64", Special::clock64},
      {"%globaltimer", Special::globaltimer},
      {"%globaltimer_lo", Special::globaltimer_lo},
      {"%globaltimer_hi", Special::globaltimer_hi}};
  return kNames;
}

}  // namespace

Operand OperandParser::parse_list(char end) {
  Operand result;
  result.kind = Operand::Kind::vector;
  at_.next();
  while (at_.skip_space(), at_.peek() != end) {
    if (at_.peek() == ',') {
      at_.next();
    } else {
      result.parts.push_back(parse());
    }
  }
  at_.next();
  return result;
}

Operand OperandParser::parse_address() {
  Operand result;
  result.kind = Operand::Kind::address;
  at_.next();
  result.parts.push_back(parse());
  at_.skip_space();
  if (at_.peek() == '+') {
    at_.next();
    result.offset = at_.number();
  } else if (at_.peek() == '-') {
    result.offset = at_.number();
  }
  while (at_.skip_space(), at_.peek() == ',') {
    at_.next();
    result.parts.push_back(parse());
  }
  if (at_.peek() != ']') {
    throw EmulationError("an address ends with '" + std::string(1, at_.peek()) + "'");
  }
  at_.next();
  return result;
}

Operand OperandParser::parse() {
  Operand result = parse_single();
  at_.skip_space();
  if (at_.peek() == '|') {
    at_.next();
    Operand pair;
    pair.kind = Operand::Kind::pair;
    pair.parts = {std::move(result), parse_single()};
    return pair;
  }
  return result;
}

Operand OperandParser::parse_single() {
  at_.skip_space();
  const char c = at_.peek();
  if (c == '{') {
    return parse_list('}');
  }
  if (c == '(') {
    return parse_list(')');
  }
  if (c == '[') {
    return parse_address();
  }
  if (c == '!') {
    at_.next();
    Operand result = parse_single();
    result.negated = true;
    return result;
  }
  Operand result;
  if (c == '-' || std::isdigit(static_cast<unsigned char>(c)) != 0) {
    const Literal literal = at_.literal();
    result.kind = Operand::Kind::immediate;
    result.literal = literal.kind;
    result.bits = literal.bits;
    return result;
  }
  const std::string name(at_.word());
  if (name == "_") {
    return result;
  }
  if (const auto found = find_register_(name)) {
    result.kind = Operand::Kind::reg;
    result.reg = *found;
    return result;
  }
  if (name.starts_with('%')) {
    std::string dotted = name;
    if (at_.peek() == '.') {
      dotted += at_.dotted_word();
    }
    const auto found = special_names().find(dotted);
    if (found == special_names().end()) {
      throw EmulationError("unknown register '" + dotted + "'");
    }
    result.kind = Operand::Kind::special;
    result.special = found->second;
    return result;
  }
  if (name.empty()) {
    throw EmulationError("an operand begins with '" + std::string(1, c) + "'");
  }
  result.kind = Operand::Kind::symbol;
  result.name = name;
  at_.skip_space();
  return result;
}

}  // namespace tilewright::emulator
