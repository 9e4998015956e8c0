// Calls of the C++ API, right and spoiled ones, against a model of what its headers say. No call
// that breaks a rule is accepted, none that keeps all of them is refused; a call that is refused
// says for which argument and has written nothing; one that is accepted has written its outputs
// alone, and they are right.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "fuzz/call.hpp"
#include "fuzz/check.hpp"
#include "fuzz/registry_query.hpp"
#include "tilewright/error.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace tilewright::fuzz {
namespace {

constexpr std::array kMakers = {make_attention,
                                make_gemm,
                                make_quantize,
                                make_dequantize,
                                make_swizzle,
                                make_unswizzle,
                                make_prepack,
                                make_unpack,
                                make_kvcache,
                                make_merge,
                                make_rope,
                                make_quantize_kv_rows,
                                make_dequantize_kv_rows,
                                make_append,
                                make_dsv4};

Tally accepted("calls were accepted");
Tally compared("of them were compared with the reference");
Tally refused("calls were refused");
Tally registry("queries of the registry");
Tally asked("queries alone, of memory that is not there");

// Why the library refuses a call; nothing where it does not.
template <typename F>
std::optional<Error> refusal_of(const F& f) {
  try {
    f();
    return std::nullopt;
  } catch (const Error& error) {
    check_printable(error.what());
    check(std::string(error.what()).starts_with(error.argument() + ": "),
          std::string("an error does not begin with its argument: ") + error.what());
    return error;
  }
}

std::string text_of(const Call& call) {
  std::string text;
  for (const Argument& argument : call.arguments()) {
    const TensorView& t = argument.tensor;
    text += fmt::format("  {}{}{}: {} {} rank {} shape {} stride {} at {}\n", argument.name,
                        argument.is_output ? " (output)" : "", argument.is_given ? "" : " (absent)",
                        name(t.dtype), name(t.device), t.rank, t.shape, t.stride, t.data);
  }
  return text;
}

void check_refusal(const std::optional<Error>& refusal, const Contract& contract,
                   bool must_be_refused) {
  if (!refusal) {
    check(!must_be_refused, "a call that breaks a rule is accepted: " + contract.text());
    return;
  }
  const std::string what = refusal->what();
  check(!contract.must_be_accepted(), "a call that keeps all rules is refused: " + what);
  check(contract.may_name(refusal->argument()),
        "a refusal names an argument that is right: " + what);
}

// What the query says of its call; the bytes it asks for.
std::size_t check_query(const Call& call, const Contract& contract) {
  std::optional<std::size_t> bytes = 0;
  const std::optional<Error> refusal = refusal_of([&] { bytes = call.workspace_bytes(); });
  if (bytes) {  // there is a query
    check_refusal(refusal, contract, contract.query_must_be_refused());
  }
  return bytes.value_or(0);
}

std::vector<ConstTensorView> outputs_of(const Call& call) {
  std::vector<ConstTensorView> outputs;
  for (const Argument& argument : call.arguments()) {
    if (argument.is_given && argument.is_output) {
      outputs.emplace_back(argument.tensor);
    }
  }
  return outputs;
}

void make_call(Call& call, Contract& contract, Arena& arena, std::size_t workspace_bytes) {
  const bool is_sound = !contract.must_be_refused();
  if (is_sound) {
    call.fill();
    call.judge_contents(contract);
  }
  std::vector<std::max_align_t> memory(workspace_bytes / sizeof(std::max_align_t) + 16);
  arena.remember();
  const std::optional<Error> refusal = refusal_of([&] {
    call.make({.data = workspace_bytes > 0 ? memory.data() : nullptr, .bytes = workspace_bytes});
  });
  check_refusal(refusal, contract, contract.must_be_refused());
  if (refusal) {
    ++refused;
    check(arena.is_unchanged(), "a call that was refused has written");
    return;
  }
  ++accepted;
  check(arena.is_unchanged_beside(outputs_of(call)), "a call has written beside its outputs");
  if (call.has_one_result() && !call.inputs_overlap()) {
    ++compared;
    call.check_results();
  }
}

void run(std::span<const std::uint8_t> data) {
  static Arena arena;
  arena.clear();
  Choices choices(data);
  if (choices.one_in(8)) {
    context = [] { return std::string(); };
    query_registry(choices);
    ++registry;
    return;
  }
  const std::unique_ptr<Call> call = choices.one_of(kMakers)(choices, arena);
  if (!call->is_complete()) {
    return;
  }
  context = [&] { return text_of(*call); };
  constexpr std::array kSpoils = {0, 1, 1, 1, 2, 3};
  for (int i = choices.one_of(kSpoils); i > 0; --i) {
    call->spoil();
  }
  Contract contract(arena);
  call->judge(contract);
  const std::size_t workspace_bytes = check_query(*call, contract);
  if (contract.must_be_refused() || call->can_be_made()) {
    make_call(*call, contract, arena, workspace_bytes);
  } else {
    ++asked;
  }
}

}  // namespace
}  // namespace tilewright::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  omp_set_num_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tilewright::fuzz::run({data, size});
  return 0;
}

// New bytes throughout, or a change of those that are there.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  tilewright::fuzz::Random random(seed);
  if (size > 16 && random.one_in(2)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const std::size_t bytes = std::min<std::size_t>(max_size, 16 + random.below(240));
  std::generate_n(data, bytes, [&] { return static_cast<std::uint8_t>(random.below(256)); });
  return bytes;
}
