// A kernel as the interpreter runs it: instructions whose operands are places in a warp's
// registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/convert.hpp"
#include "emulator/memory.hpp"
#include "emulator/tensor_core.hpp"

namespace tilewright::emulator {

using LaneMask = std::uint32_t;
inline constexpr LaneMask kAllLanes = 0xffffffffu;

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&, LaneMask);

// Registers of 8 to 32 bits take one row of 32 words of a warp's registers, those of 64 bits a row
// of 32 double words. A predicate is one LaneMask.
enum class Width : std::uint8_t { predicate, w32, w64 };

inline constexpr std::uint32_t row_bytes(Width width) { return width == Width::w64 ? 256 : 128; }

enum class Space : std::uint8_t { generic, global, shared, local, parameter };

// What the handlers of rarer instructions need, and what messages say.
struct Copy;

struct Details {
  std::string text;
  std::string location;                   // file:line of the CUDA source, if the PTX has it
  std::vector<std::uint32_t> d, a, b, c;  // rows of vector operands
  std::string table_label;                // of brx.idx
  std::shared_ptr<const Copy> copy;       // of an asynchronous copy
  Conversion conversion;
  MmaKind mma;
  WgmmaKind wgmma;
};

struct Instruction {
  enum Flag : std::uint8_t {
    kTarget = 1,       // a label stands before it: groups of lanes may meet here
    kAllTogether = 2,  // waits for all lanes of the warp
    kMembers = 4,      // waits for the lanes of the mask in row `members`
  };

  Handler run = nullptr;
  std::int32_t guard = -1;  // a predicate
  bool guard_negated = false;
  std::uint8_t flags = 0;
  Space space = Space::generic;
  bool wide_address = true;                  // the address's register has 64 bits
  std::uint32_t d = 0, a = 0, b = 0, c = 0;  // rows, or predicates
  std::uint32_t members = 0;
  std::int64_t immediate = 0;  // of an address; or a branch's target
  std::uint32_t option = 0;    // whatever the handler makes of it
  std::uint32_t line = 0;      // of the PTX
  const Details* details = nullptr;
};

// Values that are the same for a whole launch, block or thread, and lie in rows of their own.
enum class Special : std::uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  gridid,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  cluster_ctarank,
  cluster_nctarank,
  is_explicit_cluster,
  lanemask_eq,
  lanemask_lt,
  lanemask_le,
  lanemask_gt,
  lanemask_ge,
  dynamic_smem_size,
  total_smem_size,
  dynamic_smem_base,
  parameters,
  clock,
  clock64,
  globaltimer,
  globaltimer_lo,
  globaltimer_hi,
};

inline bool changes_with_time(Special special) { return special >= Special::clock; }

struct SpecialRow {
  Special special;
  Width width;
  std::uint32_t row;
};

struct ImmediateRow {
  Width width;
  std::uint64_t bits;
  std::uint32_t row;
};

struct Parameter {
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
};

// Before the first register lie zeros, which absent operands read.
inline constexpr std::uint32_t kZeroRows_bytes = 256;

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::vector<std::unique_ptr<Details>> details;
  std::vector<Parameter> parameters;
  std::uint32_t parameter_bytes = 0;
  std::uint32_t registers_bytes = kZeroRows_bytes;
  std::uint32_t predicates = 0;
  std::uint32_t static_shared_bytes = 0;
  std::uint32_t dynamic_shared_alignment = 16;
  std::uint32_t local_bytes = 0;
  std::optional<std::uint32_t> max_threads;  // of a block
  std::uint32_t min_blocks_per_sm = 1;
  std::uint32_t max_registers = 255;   // of a thread
  std::uint32_t largest_increase = 0;  // that setmaxnreg.inc asks for; 0: there is none
  // Where dynamic SMEM begins, behind what the system and static variables take.
  std::uint32_t dynamic_shared_offset() const {
    const std::uint32_t end = kReservedShared_bytes + static_shared_bytes;
    return (end + dynamic_shared_alignment - 1) / dynamic_shared_alignment *
           dynamic_shared_alignment;
  }

  std::uint32_t required_cluster[3] = {0, 0, 0};
  std::vector<ImmediateRow> immediates;
  std::vector<SpecialRow> specials;
  std::vector<std::vector<std::uint32_t>> tables;  // targets of brx.idx
};

}  // namespace tilewright::emulator
